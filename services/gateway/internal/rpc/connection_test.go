package rpc_test

import (
	"math"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/errs"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc"
)

const stallTimeout = time.Minute

const (
	modelInfer       = inference.GRPCInferenceService_ModelInfer_FullMethodName
	modelStreamInfer = inference.GRPCInferenceService_ModelStreamInfer_FullMethodName
	modelConfig      = inference.GRPCInferenceService_ModelConfig_FullMethodName
	modelReady       = inference.GRPCInferenceService_ModelReady_FullMethodName
	serverLive       = inference.GRPCInferenceService_ServerLive_FullMethodName
)

// released waits until the budget has everything back. The collector frees the buffers of a
// broken connection.
func released(t *testing.T, b *memory.Budget) {
	t.Helper()
	releasedBut(t, b, 0)
}

// releasedBut waits until n bytes are charged. A client has its response before the handler
// returns, and the call is charged until then.
func releasedBut(t *testing.T, b *memory.Budget, n int64) {
	t.Helper()
	for range 1000 {
		if b.Reserved() == n {
			return
		}
		runtime.GC()
	}
	t.Errorf("%d bytes are charged at the end, want %d", b.Reserved(), n)
}

// failures counts what is given up, by reason.
type failures struct{ responses, bodies, memory, floods atomic.Int32 }

func (f *failures) Failed(r errs.Reason) {
	switch r {
	case errs.ResponseStalled:
		f.responses.Add(1)
	case errs.BodyStalled:
		f.bodies.Add(1)
	case errs.MemoryFull:
		f.memory.Add(1)
	case errs.ConnectionFlooded:
		f.floods.Add(1)
	}
}

// stalling is a server with a budget.
func stalling(t *testing.T, limit int64) (*server, *memory.Budget, *failures) {
	t.Helper()
	budget, failed := memory.NewBudget(limit), new(failures)
	return serveWith(t, rpc.Options{Options: path.Options{Budget: budget, Meter: failed}, StallTimeout: stallTimeout}), budget, failed
}

// serves has another client make a call.
func (s *server) serves(t *testing.T) {
	t.Helper()
	if _, err := s.client.ModelInfer(t.Context(), addSub(1), grpc.WaitForReady(false)); err != nil {
		t.Errorf("another client: %v", err)
	}
}

// A client that grants no window loses its calls, and no other does.
func TestCallsWhoseResponsesAreNotReadAreReset(t *testing.T) {
	many := make([]proto.Message, 20)
	for i := range many {
		many[i] = addSub(300)
	}
	for name, c := range map[string]struct {
		method   string
		stream   bool
		format   string
		messages []proto.Message
		calls    int
		charged  int64 // at the least
	}{
		"small responses":         {modelInfer, false, "", []proto.Message{addSub(1)}, 100, 100 * 128},
		"large responses":         {modelInfer, false, "", []proto.Message{addSub(2000)}, 3, 3 * 2 * 64 * 2000},
		"a stream":                {modelStreamInfer, true, "", many, 1, 2 * 64 * 300},
		"a stream, large":         {modelStreamInfer, true, "", []proto.Message{addSub(2000), addSub(2000)}, 1, 2 * 64 * 2000},
		"responses of other APIs": {modelConfig, false, "", []proto.Message{&inference.ModelConfigRequest{Name: "add_sub"}}, 50, 50 * 100},
		"compressed responses":    {modelInfer, false, "gzip", []proto.Message{addSub(2000)}, 3, 3 * 2 * 64 * 2000},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, budget, failed := stalling(t, 0)
				raw := s.dialRaw(t, 0)
				raw.format = c.format
				var calls []uint32
				for range c.calls {
					calls = append(calls, raw.call(c.method, c.stream, c.messages...))
				}
				synctest.Wait()
				if n := budget.Reserved(); n < c.charged {
					t.Errorf("%d bytes are charged, want %d and more", n, c.charged)
				}
				s.serves(t)
				pass(2 * stallTimeout)
				if n := failed.responses.Load(); n != int32(c.calls) {
					t.Errorf("%d calls are counted as stalled, want %d", n, c.calls)
				}
				for _, id := range calls {
					if how := raw.endOf(id); !strings.HasPrefix(how, "4 Deadline Exceeded") {
						t.Errorf("call %d has ended as %q", id, how)
					}
				}
				if n := s.gateway.InFlight(); n != 0 {
					t.Errorf("%d requests are in flight", n)
				}
				released(t, budget)
				if raw.isClosed() {
					t.Error("the connection is closed")
				}
				s.serves(t) // on the connection of before
			})
		})
	}
}

// A client that reads 64 KiB within the timeout is served, however long it takes.
func TestAResponseMustBeReadAtARate(t *testing.T) {
	const size = 1 << 20
	for name, c := range map[string]struct {
		piece uint32
		whole bool
	}{
		"slow but steady": {128 << 10, true},
		"the least":       {64 << 10, false}, // is progress, and too slow to be whole here
		"single bytes":    {1, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, budget, _ := stalling(t, 0)
				raw := s.dialRaw(t, 0)
				id := raw.call(modelInfer, false, addSub(size/128))
				for range 10 {
					pass(stallTimeout * 9 / 10)
					for _, stream := range []uint32{0, id} {
						if err := raw.framer.WriteWindowUpdate(stream, c.piece); err != nil {
							t.Fatal(err)
						}
					}
				}
				synctest.Wait()
				how := raw.endOf(id)
				if got := how == "0" && raw.data.Load() > size; got != c.whole {
					t.Errorf("%d bytes have come; the call has ended as %q", raw.data.Load(), how)
				}
				if stalled := how == "CANCEL"; stalled != (c.piece == 1) {
					t.Errorf("the call has ended as %q", how)
				}
				if raw.isClosed() {
					t.Error("the connection is closed")
				}
				_ = raw.conn.Close()
				released(t, budget)
			})
		})
	}
}

// A message must come at the same rate. The connection's other call waits for its model, which
// may take as long as it likes.
func TestAMessageMustComeAtARate(t *testing.T) {
	const size = 512 << 10
	for name, c := range map[string]struct {
		method string
		piece  int
		every  time.Duration
		end    string
	}{
		"64 KiB within the timeout":      {modelInfer, 64 << 10, stallTimeout * 9 / 10, "0"},
		"a byte each second":             {modelInfer, 1, time.Second, "4 Deadline Exceeded"},
		"a byte each second in a stream": {modelStreamInfer, 1, time.Second, "4 Deadline Exceeded"},
		"nothing":                        {modelInfer, 0, time.Second, "4 Deadline Exceeded"},
		"nothing of a health probe":      {serverLive, 0, time.Second, "4 Deadline Exceeded"},
		"nothing in a stream":            {modelStreamInfer, 0, time.Second, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, budget, failed := stalling(t, 0)
				s.models.set(func() { s.models.hold = true })
				raw := s.dialRaw(t, math.MaxInt32)
				waiting := raw.call(modelInfer, false, addSub(1))
				synctest.Wait()
				s.models.set(func() { s.models.hold = false })
				id := raw.open(c.method)
				b := framed(t, addSub(size/128))
				for range 150 {
					n := min(c.piece, len(b))
					raw.send(id, b[:n], 16<<10, n == len(b))
					if b = b[n:]; len(b) == 0 || raw.endOf(id) != "" {
						break
					}
					pass(c.every)
				}
				synctest.Wait()
				if how := raw.endOf(id); how != c.end {
					t.Errorf("the call has ended as %q, want %q", how, c.end)
				}
				if n, want := failed.bodies.Load(), int32(strings.Count(c.end, "4")); n != want {
					t.Errorf("%d calls are counted as stalled, want %d", n, want)
				}
				pass(10 * stallTimeout)
				if how := raw.endOf(waiting); how != "" {
					t.Errorf("the call that waits for its model has ended as %q", how)
				}
				s.models.release()
				synctest.Wait()
				if how := raw.endOf(waiting); how != "0" {
					t.Errorf("the call that has waited for its model has ended as %q", how)
				}
				_ = raw.conn.Close()
				released(t, budget)
			})
		})
	}
}

// Where a frame stops halfway, nothing else can come on the connection.
func TestAFrameThatStopsHalfwayEndsItsConnection(t *testing.T) {
	for name, part := range map[string]func(id byte) []byte{
		"in its data":             func(id byte) []byte { return []byte{0, 1, 0, 0, 0, 0, 0, 0, id, 1, 2, 3} },
		"in its header":           func(byte) []byte { return []byte{0, 1} },
		"before its continuation": func(id byte) []byte { return []byte{0, 0, 1, 1, 0, 0, 0, 0, id + 2, 0x82} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, budget, failed := stalling(t, 0)
				raw := s.dialRaw(t, math.MaxInt32)
				id := raw.open(modelStreamInfer)
				if _, err := raw.conn.Write(part(byte(id))); err != nil {
					t.Fatal(err)
				}
				pass(stallTimeout)
				if raw.isClosed() {
					t.Error("the connection is closed early")
				}
				pass(stallTimeout)
				if !raw.isClosed() || failed.bodies.Load() != 1 {
					t.Errorf("closed: %t; %d are counted", raw.isClosed(), failed.bodies.Load())
				}
				s.serves(t)
				released(t, budget)
			})
		})
	}
}

// A client that does not read from its connection cannot have a call reset: the connection is
// closed.
func TestAConnectionThatIsNotReadIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, budget, failed := stalling(t, 0)
		raw := s.dialRaw(t, math.MaxInt32)
		raw.paused.Store(true)
		raw.call(modelInfer, false, addSub(4<<20/128))
		for range 8 {
			raw.call(modelInfer, false, addSub(1))
		}
		pass(stallTimeout)
		if failed.responses.Load() != 0 {
			t.Error("a response is given up early")
		}
		pass(stallTimeout)
		if n := failed.responses.Load(); n != 1 || s.gateway.InFlight() != 0 {
			t.Errorf("%d are counted as stalled, %d requests are in flight", n, s.gateway.InFlight())
		}
		s.serves(t)
		released(t, budget)
	})
}

// A client that goes away leaves nothing behind.
func TestALostConnectionIsChargedNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, budget, _ := stalling(t, 0)
		raw := s.dialRaw(t, 0)
		for range 10 {
			raw.call(modelInfer, false, addSub(1))
		}
		raw.send(raw.open(modelInfer), framed(t, addSub(1000)), 1000, false)
		synctest.Wait()
		if budget.Reserved() == 0 {
			t.Error("nothing is charged")
		}
		_ = raw.conn.Close()
		synctest.Wait()
		if n := budget.Reserved(); n != 0 {
			t.Errorf("%d bytes are charged after the end", n)
		}
	})
}
