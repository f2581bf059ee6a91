package transport

import (
	"bytes"
	"io"
	"math/rand/v2"
	"testing"

	"golang.org/x/net/http2"
)

// seen is a frame, and the bytes that a scanner has found in its payload.
type seen struct {
	frame   frame
	payload int
}

// split has a scanner read b in pieces of which random says the lengths.
func split(s scanner, b []byte, random *rand.Rand) (list []seen, between []int) {
	at := 0
	for at < len(b) {
		piece := b[at:min(len(b), at+1+random.IntN(40))]
		for len(piece) > 0 {
			n, part := s.next(piece)
			switch {
			case part == header:
				list = append(list, seen{frame: s.frame})
			case part == payload && len(list) > 0:
				list[len(list)-1].payload += n
			}
			piece = piece[n:]
			if at += n; s.between() {
				between = append(between, at)
			}
		}
	}
	return list, between
}

// The scanner finds the frames that the framer of gRPC finds, wherever the bytes are cut.
func FuzzScanner(f *testing.F) {
	var b bytes.Buffer
	framer := http2.NewFramer(&b, nil)
	for _, err := range []error{
		framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 7}), framer.WriteSettingsAck(),
		framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82}}), framer.WriteContinuation(1, true, []byte{0x84}),
		framer.WriteData(1, false, make([]byte, 300)), framer.WriteDataPadded(1, true, []byte("x"), make([]byte, 9)), framer.WriteData(3, true, nil),
		framer.WriteRSTStream(1, http2.ErrCodeCancel), framer.WriteWindowUpdate(0, 1), framer.WritePing(true, [8]byte{}),
	} {
		if err != nil {
			f.Fatal(err)
		}
	}
	f.Add(b.Bytes(), uint64(1))
	f.Add([]byte("PRI * HTTP/2.0"), uint64(2))
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		var want []seen
		var ends []int
		reader := bytes.NewReader(b)
		framer := http2.NewFramer(nil, reader)
		framer.AllowIllegalReads = true
		framer.SetMaxReadFrameSize(1<<24 - 1)
		block := false
		for {
			h, err := framer.ReadFrameHeader()
			if err != nil {
				break
			}
			n := min(int(h.Length), reader.Len())
			want = append(want, seen{frame{int(h.Length), h.Type, h.Flags, h.StreamID}, n})
			if h.Type == http2.FrameHeaders || h.Type == http2.FrameContinuation || h.Type == http2.FramePushPromise {
				block = h.Flags&http2.FlagHeadersEndHeaders == 0
			}
			if _, err := reader.Seek(int64(n), io.SeekCurrent); err != nil {
				t.Fatal(err)
			}
			if n == int(h.Length) && !block {
				ends = append(ends, len(b)-reader.Len())
			}
		}
		got, between := split(scanner{}, b, rand.New(rand.NewPCG(seed, 0)))
		if len(got) != len(want) {
			t.Fatalf("%d frames, want %d", len(got), len(want))
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("frame %d is %+v, want %+v", i, got[i], want[i])
			}
		}
		found := make(map[int]bool)
		for _, at := range between {
			found[at] = true
		}
		for _, at := range ends {
			if !found[at] {
				t.Errorf("no frame may stand at %d, want one", at)
			}
			delete(found, at)
		}
		if len(found) != 0 {
			t.Errorf("frames may stand at %v, too", found)
		}
	})
}

func TestTheClientsPrefaceIsNoFrame(t *testing.T) {
	var b bytes.Buffer
	b.WriteString(http2.ClientPreface)
	if err := http2.NewFramer(&b, nil).WriteSettings(); err != nil {
		t.Fatal(err)
	}
	list, _ := split(afterPreface(), b.Bytes(), rand.New(rand.NewPCG(1, 1)))
	if len(list) != 1 || list[0].frame.kind != http2.FrameSettings {
		t.Errorf("%+v", list)
	}
}

// Messages are counted wherever frames cut them.
func TestMessagesAreCountedAcrossFrames(t *testing.T) {
	var b []byte
	const messages = 50
	random := rand.New(rand.NewPCG(3, 3))
	for i := range messages {
		n := i % 7 * 40
		b = append(b, 0, 0, 0, byte(n>>8), byte(n))
		b = append(b, make([]byte, n)...)
	}
	var m message
	ended := 0
	for len(b) > 0 {
		n := min(len(b), 1+random.IntN(60))
		ended += m.advance(b[:n])
		b = b[n:]
	}
	if ended != messages || !m.between() {
		t.Errorf("%d messages, want %d; between two: %t", ended, messages, m.between())
	}
}
