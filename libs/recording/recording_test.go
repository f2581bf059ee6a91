package recording_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/nereid-serving/nereid/libs/recording"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

func request(n uint64, size int) *nereidv1.RecordedRequest {
	return &nereidv1.RecordedRequest{Number: n, OffsetNs: int64(n) * 1e6, Tenant: "gold", Request: bytes.Repeat([]byte{byte(n)}, size)}
}

func end(n uint64) *nereidv1.RecordedEnd {
	return &nereidv1.RecordedEnd{Number: n, TookNs: 5e6, Responses: [][]byte{{1, 2}}}
}

// written is a recording of three requests, the second of which has no end.
func written(t testing.TB, whole bool) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := recording.NewWriter(&out, &nereidv1.RecordingStart{TimeUnixNs: 7, Share: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []*nereidv1.RecordingPart{
		{Part: &nereidv1.RecordingPart_Request{Request: request(1, 10)}},
		{Part: &nereidv1.RecordingPart_Request{Request: request(2, 100_000)}},
		{Part: &nereidv1.RecordingPart_Request{Request: request(3, 0)}},
		{Part: &nereidv1.RecordingPart_End{End: end(3)}},
		{Part: &nereidv1.RecordingPart_End{End: end(1)}},
		{Part: &nereidv1.RecordingPart_End{End: end(99)}}, // of a request before the recording
	} {
		b, err := recording.AppendPart(nil, part)
		if err == nil {
			err = w.Write(b)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if whole {
		err = w.Close(recording.Summary{Requests: 3, Ended: "duration"})
	} else {
		err = w.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	for _, whole := range []bool{true, false} {
		got, err := recording.Read(bytes.NewReader(written(t, whole)))
		if whole && err != nil || !whole && !errors.Is(err, recording.ErrTruncated) {
			t.Fatalf("whole %t: %v", whole, err)
		}
		want := &recording.Recording{
			Start:    &nereidv1.RecordingStart{TimeUnixNs: 7, Share: 1},
			Requests: []recording.Request{{request(1, 10), end(1)}, {request(2, 100_000), nil}, {request(3, 0), end(3)}},
		}
		if whole {
			want.Summary = &recording.Summary{Requests: 3, Ended: "duration"}
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("whole %t (-want +got):\n%s", whole, diff)
		}
	}
}

func TestARequestIsWrittenWithItsMessage(t *testing.T) {
	message := &nereidv1.RecordedEnd{Number: 7, Responses: [][]byte{make([]byte, 1000)}} // any
	encoded, err := proto.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	want := request(3, 0)
	got, err := recording.AppendRequest([]byte("before"), want, message)
	want.Request = encoded
	if err != nil {
		t.Fatal(err)
	}
	usual, err := recording.AppendPart([]byte("before"), &nereidv1.RecordingPart{Part: &nereidv1.RecordingPart_Request{Request: want}})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(usual) {
		t.Fatalf("%d bytes, want %d", len(got), len(usual))
	}
	var part nereidv1.RecordingPart
	_, n := binary.Uvarint(got[len("before"):])
	if err := proto.Unmarshal(got[len("before")+n:], &part); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, part.GetRequest(), protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestEveryPrefixIsReadOrRefused(t *testing.T) {
	all := written(t, true)
	for n := range all {
		got, err := recording.Read(bytes.NewReader(all[:n]))
		if err == nil || got != nil && !errors.Is(err, recording.ErrTruncated) {
			t.Fatalf("%d of %d bytes: %v", n, len(all), err)
		}
	}
}

func TestRecordingsAreToldFromOtherFiles(t *testing.T) {
	if !recording.Is(bufio.NewReader(bytes.NewReader(written(t, true)))) {
		t.Error("a recording is none")
	}
	for _, other := range []string{"", "nereid decision log 3\n", "nereid recor", "{}"} {
		if recording.Is(bufio.NewReader(strings.NewReader(other))) {
			t.Errorf("%q is a recording", other)
		}
		if _, err := recording.Read(strings.NewReader(other)); err == nil {
			t.Errorf("%q was read", other)
		}
	}
}

// A part that states more bytes than there are takes no memory for them.
func TestALengthThatLiesTakesNoMemory(t *testing.T) {
	var out bytes.Buffer
	out.WriteString("nereid recording 1\n")
	w, err := zstd.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	start, err := recording.AppendPart(nil, &nereidv1.RecordingPart{Part: &nereidv1.RecordingPart_Start{Start: &nereidv1.RecordingStart{}}})
	if err != nil {
		t.Fatal(err)
	}
	for length, want := range map[string]error{"\xff\xff\xff\xff\x07": recording.ErrTruncated, "\xff\xff\xff\xff\xff\x01": nil} {
		out.Truncate(len("nereid recording 1\n"))
		w.Reset(&out)
		if _, err := w.Write(append(start, length...)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		var err error
		allocated := testing.Benchmark(func(b *testing.B) {
			for b.Loop() {
				_, err = recording.Read(bytes.NewReader(out.Bytes()))
			}
		}).AllocedBytesPerOp()
		if err == nil || want != nil && !errors.Is(err, want) || allocated > 16<<20 {
			t.Errorf("%x: %v, with %d bytes", length, err, allocated)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add(written(f, true))
	f.Add(written(f, false))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := recording.NewReader(bytes.NewReader(data))
		if err != nil {
			return
		}
		defer r.Close()
		for range 1000 {
			if _, err := r.Next(); err != nil {
				if errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("an end is told as %v", err)
				}
				return
			}
		}
	})
}
