package rpc_test

import (
	"bytes"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc"
)

// A client of gRPC for Go pings no more often than every ten seconds: frames
// are written by hand.
func TestPingsOfClientsAreBounded(t *testing.T) {
	for name, c := range map[string]struct {
		pings rpc.Pings
		want  int // pings that are acknowledged
	}{
		"as by default":              {rpc.Pings{Interval: 5 * time.Minute, Strikes: 2}, 4},
		"once too early":             {rpc.Pings{Interval: 5 * time.Minute, Strikes: 1}, 3},
		"five times too early":       {rpc.Pings{Interval: 5 * time.Minute, Strikes: 5}, 7},
		"ten times too early":        {rpc.Pings{Interval: 5 * time.Minute, WithoutCalls: true, Strikes: 10}, 10},
		"any number":                 {rpc.Pings{Interval: 5 * time.Minute}, 10},
		"at will during calls alone": {rpc.Pings{Strikes: 2}, 4},
		"at will":                    {rpc.Pings{WithoutCalls: true, Strikes: 2}, 10},
		"rarely without calls":       {rpc.Pings{Interval: time.Hour, WithoutCalls: true, Strikes: 3}, 5},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveWith(t, rpc.Options{Pings: c.pings})
			conn, err := s.listener.DialContext(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
				t.Fatal(err)
			}
			framer := http2.NewFramer(conn, conn)
			if err := framer.WriteSettings(); err != nil {
				t.Fatal(err)
			}
			const pings = 10
			acknowledged := 0
			for range pings { // one after the other: gRPC acknowledges together what comes together
				if err := framer.WritePing(false, [8]byte{}); err != nil {
					t.Fatal(err)
				}
				if goesAway(t, framer) {
					break
				}
				acknowledged++
			}
			if acknowledged != c.want {
				t.Errorf("%d of %d pings are acknowledged, want %d", acknowledged, pings, c.want)
			}
		})
	}
}

// goesAway waits until a ping is acknowledged, or the server says that it goes away, which it
// reports.
func goesAway(t *testing.T, framer *http2.Framer) bool {
	t.Helper()
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		switch f := frame.(type) {
		case *http2.PingFrame:
			if f.IsAck() {
				return false
			}
		case *http2.GoAwayFrame:
			if f.ErrCode != http2.ErrCodeEnhanceYourCalm || string(f.DebugData()) != "too_many_pings" {
				t.Errorf("the server goes away with %v, %q", f.ErrCode, f.DebugData())
			}
			return true
		}
	}
}

// A client that gets data may ping again, and the one that pinged too often is disconnected.
func TestResponsesAllowPings(t *testing.T) {
	var closed atomic.Int32
	s := serveWith(t, rpc.Options{Pings: rpc.Pings{Interval: time.Hour, WithoutCalls: true, Strikes: 1}, Closed: func(_ net.Addr, cause *errs.Error) {
		if cause.Reason == errs.ConnectionFlooded {
			closed.Add(1)
		}
	}})
	conn, err := s.listener.DialContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	framer := http2.NewFramer(conn, conn)
	if err := framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for round := range 4 {
		for range 2 { // the second one is too early
			if err := framer.WritePing(false, [8]byte{}); err != nil {
				t.Fatal(err)
			}
			if goesAway(t, framer) {
				t.Fatalf("the server goes away in round %d", round)
			}
		}
		block.Reset()
		for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", "/inference.GRPCInferenceService/ServerLive"}, {":authority", "x"}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
			if err := encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
				t.Fatal(err)
			}
		}
		id := uint32(2*round + 1) //nolint:gosec // a few
		if err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true}); err != nil {
			t.Fatal(err)
		}
		if err := framer.WriteData(id, true, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
		for ended := false; !ended; {
			frame, err := framer.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			headers, is := frame.(*http2.HeadersFrame)
			ended = is && headers.StreamEnded()
		}
	}
	for range 4 { // the first one resets the strikes
		if err := framer.WritePing(false, [8]byte{}); err != nil {
			t.Fatal(err)
		}
		if goesAway(t, framer) {
			break
		}
	}
	if _, err := io.Copy(io.Discard, conn); err != nil {
		t.Error(err)
	}
	if closed.Load() != 1 {
		t.Errorf("%d connections are closed for their pings, want 1", closed.Load())
	}
}
