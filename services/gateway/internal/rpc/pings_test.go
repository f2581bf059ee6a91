package rpc_test

import (
	"io"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/nereid-serving/nereid/services/gateway/internal/rpc"
)

// A client of gRPC for Go pings no more often than every ten seconds: frames
// are written by hand.
func TestPingsOfClientsAreBounded(t *testing.T) {
	for name, c := range map[string]struct {
		options rpc.Options
		closed  bool
	}{
		"as by default":                 {rpc.Options{}, true},
		"at will during calls alone":    {rpc.Options{PingInterval: 1}, true},
		"at will":                       {rpc.Options{PingInterval: 1, PingWithoutCalls: true}, false},
		"rarely, with calls or without": {rpc.Options{PingInterval: time.Hour, PingWithoutCalls: true}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveWith(t, c.options)
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
			go func() {
				for range pings {
					_ = framer.WritePing(false, [8]byte{})
				}
			}()
			if acknowledged := acknowledgements(t, framer, pings); (acknowledged < pings) != c.closed {
				t.Errorf("%d of %d pings are acknowledged", acknowledged, pings)
			}
		})
	}
}

// acknowledgements counts those of pings until there are all, or the server says
// that it goes away.
func acknowledgements(t *testing.T, framer *http2.Framer, pings int) (acknowledged int) {
	for acknowledged < pings {
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Errorf("after %d acknowledgements: %v", acknowledged, err)
			return acknowledged
		}
		switch f := frame.(type) {
		case *http2.PingFrame:
			if f.IsAck() {
				acknowledged++
			}
		case *http2.GoAwayFrame:
			if f.ErrCode != http2.ErrCodeEnhanceYourCalm {
				t.Errorf("the server goes away with %v", f.ErrCode)
			}
			return acknowledged
		}
	}
	return acknowledged
}
