package rpc_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/errs"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc"
)

const stallTimeout = time.Minute

// deafClient is a client that grants no window by itself. Frames are written by hand.
type deafClient struct {
	t      *testing.T
	conn   net.Conn
	framer *http2.Framer
	stream uint32       // the last; odd
	format string       // of messages, as it says; none if empty
	data   atomic.Int64 // bytes of responses that have come
	whole  atomic.Int32 // responses that have
	closed chan struct{}
}

func (s *server) dialDeaf(t *testing.T) *deafClient {
	t.Helper()
	conn, err := s.listener.DialContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c := &deafClient{t: t, conn: conn, framer: http2.NewFramer(conn, conn), stream: 1, closed: make(chan struct{})}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize}); err != nil {
		t.Fatal(err)
	}
	go c.read()
	return c
}

func (c *deafClient) read() {
	defer close(c.closed)
	for {
		frame, err := c.framer.ReadFrame()
		if err != nil {
			return
		}
		switch f := frame.(type) {
		case *http2.DataFrame:
			c.data.Add(int64(len(f.Data())))
		case *http2.HeadersFrame:
			if f.StreamEnded() {
				c.whole.Add(1)
			}
		}
	}
}

// call begins a call with messages, and ends it on its side unless it is a stream.
func (c *deafClient) call(method string, stream bool, messages ...proto.Message) {
	c.t.Helper()
	c.stream += 2
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	headers := [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", method}, {":authority", "x"}, {"content-type", "application/grpc"}, {"te", "trailers"},
	}
	if c.format != "" {
		headers = append(headers, [2]string{"grpc-encoding", c.format})
	}
	for _, h := range headers {
		if err := encoder.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}); err != nil {
			c.t.Fatal(err)
		}
	}
	if err := c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: c.stream, BlockFragment: block.Bytes(), EndHeaders: true}); err != nil {
		c.t.Fatal(err)
	}
	for i, m := range messages {
		b, err := proto.Marshal(m)
		if err != nil {
			c.t.Fatal(err)
		}
		b = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), b...)
		for len(b) > 0 {
			n := min(len(b), 16<<10)
			if err := c.framer.WriteData(c.stream, n == len(b) && i == len(messages)-1 && !stream, b[:n]); err != nil {
				c.t.Fatal(err)
			}
			synctest.Wait() // until the server has read it: it resets a call that goes beyond its window
			b = b[n:]
		}
	}
}

// released waits until the budget has everything back. What a broken connection has
// borrowed comes with the garbage collector.
func released(t *testing.T, b *core.Budget) {
	t.Helper()
	for range 1000 {
		if b.Reserved() == 0 {
			return
		}
		runtime.GC()
	}
	t.Errorf("%d bytes are charged at the end", b.Reserved())
}

// stalls counts the connections that are given up.
type stalls struct{ atomic.Int32 }

func (s *stalls) Failed(r errs.Reason) {
	if r == errs.ResponseStalled {
		s.Add(1)
	}
}

func (*stalls) Ended(*path.Outcome) {}

func TestAClientThatGrantsNoWindowIsGivenUp(t *testing.T) {
	const infer, streamed = inference.GRPCInferenceService_ModelInfer_FullMethodName, inference.GRPCInferenceService_ModelStreamInfer_FullMethodName
	many := make([]proto.Message, 20)
	for i := range many {
		many[i] = addSub(300)
	}
	for name, c := range map[string]struct {
		method   string
		stream   bool
		messages []proto.Message
		calls    int
		charged  int64 // at the least
	}{
		"small responses":         {infer, false, []proto.Message{addSub(1)}, 100, 100 * 128},
		"large responses":         {infer, false, []proto.Message{addSub(2000)}, 3, 3 * 2 * 64 * 2000},
		"a stream":                {streamed, true, many, 1, 2 * 64 * 300},
		"a stream, large":         {streamed, true, []proto.Message{addSub(2000), addSub(2000)}, 1, 2 * 64 * 2000},
		"responses of other APIs": {inference.GRPCInferenceService_ModelConfig_FullMethodName, false, []proto.Message{&inference.ModelConfigRequest{Name: "add_sub"}}, 50, 50 * 100},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				budget := core.NewBudget(0)
				var stalled stalls
				s := serveWith(t, rpc.Options{Options: path.Options{Budget: budget, Meter: &stalled}, StallTimeout: stallTimeout})
				deaf := s.dialDeaf(t)
				for range c.calls {
					deaf.call(c.method, c.stream, c.messages...)
				}
				synctest.Wait()
				if n := budget.Reserved(); n < c.charged {
					t.Errorf("%d bytes are charged, want %d and more", n, c.charged)
				}
				s.serves(t)
				<-time.After(10 * stallTimeout)
				select {
				case <-deaf.closed:
				default:
					t.Error("the connection is open")
				}
				if n := stalled.Load(); n != 1 {
					t.Errorf("%d connections are counted as stalled, want 1", n)
				}
				if n := s.gateway.InFlight(); n != 0 {
					t.Errorf("%d requests are in flight", n)
				}
				s.serves(t) // on the connection of before
				released(t, budget)
			})
		})
	}
}

// serves has another client make a call.
func (s *server) serves(t *testing.T) {
	t.Helper()
	if _, err := s.client.ModelInfer(t.Context(), addSub(1), grpc.WaitForReady(false)); err != nil {
		t.Errorf("another client: %v", err)
	}
}

// Who takes 1 MiB within the timeout is served, however long it takes.
func TestAResponseMustBeTakenAtARate(t *testing.T) {
	const size = 4 << 20
	for name, c := range map[string]struct {
		piece uint32
		whole bool
	}{
		"slow but steady": {1 << 20, true},
		"single bytes":    {1, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				budget := core.NewBudget(0)
				s := serveWith(t, rpc.Options{Options: path.Options{Budget: budget}, StallTimeout: stallTimeout})
				deaf := s.dialDeaf(t)
				deaf.call(inference.GRPCInferenceService_ModelInfer_FullMethodName, false, addSub(size/128))
				for range 10 {
					<-time.After(stallTimeout * 9 / 10)
					// A closed connection is what the test looks for below.
					_ = deaf.framer.WriteWindowUpdate(0, c.piece)
					_ = deaf.framer.WriteWindowUpdate(deaf.stream, c.piece)
				}
				synctest.Wait()
				select {
				case <-deaf.closed:
					if c.whole {
						t.Errorf("the connection is closed after %d bytes", deaf.data.Load())
					}
				default:
					if !c.whole {
						t.Errorf("the connection is open after %d bytes", deaf.data.Load())
					}
				}
				if got := deaf.whole.Load() == 1 && deaf.data.Load() > size; got != c.whole {
					t.Errorf("%d bytes have come, of %d responses that are whole", deaf.data.Load(), deaf.whole.Load())
				}
				_ = deaf.conn.Close()
				released(t, budget)
			})
		})
	}
}

// A client that goes away takes nothing with it.
func TestALostConnectionIsChargedNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := core.NewBudget(0)
		s := serveWith(t, rpc.Options{Options: path.Options{Budget: budget}})
		deaf := s.dialDeaf(t)
		for range 10 {
			deaf.call(inference.GRPCInferenceService_ModelInfer_FullMethodName, false, addSub(1))
		}
		synctest.Wait()
		if budget.Reserved() == 0 {
			t.Error("nothing is charged")
		}
		_ = deaf.conn.Close()
		synctest.Wait()
		if n := budget.Reserved(); n != 0 {
			t.Errorf("%d bytes are charged after the end", n)
		}
	})
}
