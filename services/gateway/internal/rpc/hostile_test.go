package rpc_test

import (
	"bytes"
	"fmt"
	"math"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nereid-serving/nereid/libs/errs"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc"
)

// Messages that are never complete fill the budget, whatever the call. Those who hold most lose
// their calls, and an honest client none.
func TestUnfinishedMessagesDoNotFillTheBudget(t *testing.T) {
	const limit, piece = 64 << 20, 1 << 20
	for name, c := range map[string]struct {
		method               string
		connections, streams int
	}{
		"health probes on many connections": {serverLive, 40, 2},
		"inferences on one connection":      {modelInfer, 1, 70},
		"streams":                           {modelStreamInfer, 8, 10},
		"reflection":                        {"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", 8, 10},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, budget, failed := stalling(t, limit)
				honest := s.dialRaw(t, math.MaxInt32)
				request := framed(t, addSub(1))
				upload := honest.open(modelInfer)
				honest.send(upload, request[:100], 1<<10, false)
				most, resets := int64(0), 0
				start := append([]byte{0, 0, 0xff, 0xff, 0xff}, make([]byte, piece-5)...)
				for range c.connections {
					raw := s.dialRaw(t, math.MaxInt32)
					for range c.streams {
						raw.send(raw.open(c.method), start, 16<<10, false)
						most = max(most, budget.Reserved())
					}
					resets += len(raw.ended)
					s.serves(t)
				}
				if most > limit {
					t.Errorf("%d bytes are charged, of %d", most, int64(limit))
				}
				if most < limit/2 {
					t.Errorf("only %d bytes are charged", most)
				}
				if n := failed.memory.Load(); n == 0 {
					t.Error("no call is reset")
				}
				honest.send(upload, request[100:], 1<<10, true)
				synctest.Wait()
				if how := honest.endOf(upload); how != "0" {
					t.Errorf("the honest call has ended as %q", how)
				}
				pass(2 * stallTimeout)
				if n := budget.Reserved(); n != 0 {
					t.Errorf("%d bytes are charged after the timeout", n)
				}
			})
		})
	}
}

// A connection whose calls cannot be reset, since its client reads nothing, is closed once it goes
// far beyond the budget.
func TestAConnectionThatGoesFarBeyondTheBudgetIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 64 << 20
		s, budget, failed := stalling(t, limit)
		raw := s.dialRaw(t, math.MaxInt32)
		raw.paused.Store(true)
		raw.call(modelInfer, false, addSub(4<<20/128)) // the response fills the buffers between
		start, most := append([]byte{0, 0, 0xff, 0xff, 0xff}, make([]byte, 1<<20)...), int64(0)
		for range 100 {
			id := raw.open(serverLive)
			for b := start; len(b) > 0 && !raw.broken(); b = b[min(len(b), 16<<10):] {
				_ = raw.framer.WriteData(id, false, b[:min(len(b), 16<<10)])
				synctest.Wait()
				most = max(most, budget.Reserved())
			}
			if raw.broken() {
				break
			}
		}
		if !raw.broken() || failed.memory.Load() != 1 {
			t.Errorf("broken: %t; counted %d times", raw.broken(), failed.memory.Load())
		}
		if most > limit*9/8+1<<20 {
			t.Errorf("%d bytes were charged, of %d", most, int64(limit))
		}
		s.serves(t)
		released(t, budget)
	})
}

// What a call receives in frames of a byte costs gRPC many times that.
func TestSmallFramesAreChargedForWhatTheyTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, budget, _ := stalling(t, 0)
		raw := s.dialRaw(t, math.MaxInt32)
		id := raw.open(modelInfer)
		synctest.Wait()
		before := budget.Reserved()
		const frames = 1000
		raw.send(id, append([]byte{0, 0, 0xff, 0xff, 0xff}, make([]byte, frames-5)...), 1, false)
		if n := budget.Reserved() - before; n < frames*100 {
			t.Errorf("%d bytes are charged for %d frames", n, frames)
		}
		if err := raw.framer.WriteRSTStream(id, http2.ErrCodeCancel); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := budget.Reserved(); n != 0 {
			t.Errorf("%d bytes are charged after the end", n)
		}
	})
}

// A call is its own stream's, whatever came behind its headers in the same bytes.
func TestFramesAreChargedToTheirCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, budget, _ := stalling(t, 0)
		raw := s.dialRaw(t, math.MaxInt32)
		var together bytes.Buffer
		framer := http2.NewFramer(&together, nil)
		block := raw.headers(modelInfer)
		for id := uint32(1); id <= 5; id += 2 {
			split := min(len(block), int(id)*10)
			if err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:split]}); err != nil {
				t.Fatal(err)
			}
			if err := framer.WriteContinuation(id, true, block[split:]); err != nil {
				t.Fatal(err)
			}
		}
		if err := framer.WriteDataPadded(3, true, framed(t, addSub(1)), make([]byte, 200)); err != nil {
			t.Fatal(err)
		}
		if _, err := raw.conn.Write(together.Bytes()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for id, want := range map[uint32]string{1: "", 3: "0", 5: ""} {
			if how := raw.endOf(id); how != want {
				t.Errorf("call %d has ended as %q, want %q", id, how, want)
			}
		}
		one := budget.Reserved() / 2
		for id := uint32(1); id <= 5; id += 4 {
			if one == 0 || budget.Reserved()%one != 0 {
				t.Errorf("%d bytes are charged", budget.Reserved())
			}
			if err := raw.framer.WriteRSTStream(id, http2.ErrCodeCancel); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		if n := budget.Reserved(); n != 0 {
			t.Errorf("%d bytes are charged after the end", n)
		}
	})
}

// The client of a call that is reset sees why.
func TestAResetCallHasAReason(t *testing.T) {
	budget := memory.NewBudget(16 << 20)
	s := serveWith(t, rpc.Options{Options: path.Options{Budget: budget}})
	stream, err := s.client.ModelStreamInfer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(addSub(1)); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil { // the response's headers have come
		t.Fatal(err)
	}
	const others = 15 << 20
	budget.Hold(others)
	defer budget.Release(others)
	open := budget.Reserved() // by the stream
	for _, tt := range []struct {
		name string
		call func() error
		left int64
	}{
		{"a call", func() error { _, err := s.client.ModelInfer(t.Context(), addSub(4<<20/128)); return err }, open},
		{"a stream", func() error {
			_ = stream.Send(addSub(4 << 20 / 128)) // twice that on its way would close the connection
			_, err := stream.Recv()
			return err
		}, others},
	} {
		st := status.Convert(tt.call())
		// A call is refused rather than reset where the handler starts when too much has come already.
		said := strings.Contains(st.Message(), "not complete") || tt.left == open && strings.Contains(st.Message(), "requests in flight hold")
		if st.Code() != codes.ResourceExhausted || detail[*errdetails.ErrorInfo](st).GetReason() != string(errs.MemoryFull) || !said {
			t.Errorf("%s: %v", tt.name, st)
		}
		releasedBut(t, budget, tt.left) // else the next call is refused before it is read
	}
	if _, err := s.client.ModelReady(t.Context(), &inference.ModelReadyRequest{Name: "add_sub"}); err != nil {
		t.Errorf("the connection afterwards: %v", err)
	}
}

// Frames that serve no call are bounded; those of an honest client are far below the bound.
func TestAFloodOfFramesEndsItsConnection(t *testing.T) {
	window := func(raw *rawClient) error { return raw.framer.WriteWindowUpdate(0, 1) }
	for name, c := range map[string]struct {
		frame func(raw *rawClient) error
		times int
		every time.Duration
		ended bool
	}{
		"window updates":          {window, 20_000, 0, true},
		"settings":                {func(raw *rawClient) error { return raw.framer.WriteSettings() }, 20_000, 0, true},
		"acknowledged settings":   {func(raw *rawClient) error { return raw.framer.WriteSettingsAck() }, 20_000, 0, true},
		"acknowledged pings":      {func(raw *rawClient) error { return raw.framer.WritePing(true, [8]byte{}) }, 20_000, 0, true},
		"empty data":              {func(raw *rawClient) error { return raw.framer.WriteData(1, false, nil) }, 20_000, 0, true},
		"data for nobody":         {func(raw *rawClient) error { return raw.framer.WriteData(7, false, []byte{1}) }, 20_000, 0, true},
		"priorities":              {func(raw *rawClient) error { return raw.framer.WritePriority(1, http2.PriorityParam{}) }, 20_000, 0, true},
		"resets":                  {func(raw *rawClient) error { return raw.framer.WriteRSTStream(9, http2.ErrCodeCancel) }, 20_000, 0, true},
		"of unknown types":        {func(raw *rawClient) error { return raw.framer.WriteRawFrame(0xbe, 0, 0, nil) }, 20_000, 0, true},
		"window updates at times": {window, 20_000, 20 * time.Millisecond, false},
		"calls with window updates": {func(raw *rawClient) error {
			raw.call(modelInfer, false, addSub(1))
			if err := raw.framer.WriteWindowUpdate(raw.stream, 1); err != nil {
				return err
			}
			return window(raw)
		}, 6_000, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, budget, failed := stalling(t, 0)
				raw := s.dialRaw(t, math.MaxInt32/2)
				raw.open(modelStreamInfer)
				synctest.Wait()
				for range c.times {
					if c.frame(raw) != nil {
						break
					}
					if c.every > 0 {
						pass(c.every)
					}
				}
				if closed := raw.isClosed(); closed != c.ended || (failed.floods.Load() == 1) != c.ended {
					t.Errorf("closed: %t; counted %d times", closed, failed.floods.Load())
				}
				_ = raw.conn.Close()
				s.serves(t)
				released(t, budget)
			})
		})
	}
}

// Headers that never end are no call.
func TestHeadersWithoutEndEndTheirConnection(t *testing.T) {
	for name, fragment := range map[string][]byte{"of nothing": nil, "of indexed fields": bytes.Repeat([]byte{0x82 + 2}, 1000)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, budget, _ := stalling(t, 0)
				raw := s.dialRaw(t, 0)
				err := raw.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x83}})
				for n := 0; err == nil; n++ {
					if n > 1000 {
						t.Fatal("the connection is open after 1000 frames")
					}
					err = raw.framer.WriteContinuation(1, false, fragment)
					synctest.Wait()
				}
				s.serves(t)
				released(t, budget)
			})
		})
	}
}

// A call with too large headers fails, and its connection serves on. (One with far too large headers loses its connection.)
func TestHeadersOfACallAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, budget, _ := stalling(t, 0)
		raw := s.dialRaw(t, math.MaxInt32)
		for _, size := range []int{8 << 10, 18 << 10} {
			served := size < 16<<10
			var block bytes.Buffer
			block.Write(raw.headers(modelInfer))
			for encoder, n := hpack.NewEncoder(&block), 0; n < size; n += 2 << 10 {
				if err := encoder.WriteField(hpack.HeaderField{Name: "x", Value: strings.Repeat("0", 2<<10), Sensitive: true}); err != nil {
					t.Fatal(err)
				}
			}
			raw.stream = max(raw.stream+2, 1) | 1
			b := block.Bytes()
			first := min(len(b), 16<<10)
			if err := raw.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: raw.stream, BlockFragment: b[:first], EndHeaders: first == len(b)}); err != nil {
				t.Fatal(err)
			}
			if first < len(b) {
				if err := raw.framer.WriteContinuation(raw.stream, true, b[first:]); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
			if how := raw.endOf(raw.stream); (how == "") != served {
				t.Errorf("a call with %d bytes of headers has ended as %q", size, how)
			}
			if served {
				raw.send(raw.stream, framed(t, addSub(1)), 16<<10, true)
			}
		}
		id := raw.call(modelInfer, false, addSub(1))
		if how := raw.endOf(id); how != "0" {
			t.Errorf("the next call has ended as %q", how)
		}
		released(t, budget)
	})
}

// A client that opens calls and resets them at once has no more of them at work than it may
// have open.
func TestCallsThatAreResetAtOnceAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 10
		budget := memory.NewBudget(0)
		s := serveWith(t, rpc.Options{Options: path.Options{Budget: budget}, MaxStreams: most})
		s.models.set(func() { s.models.hold = true })
		raw := s.dialRaw(t, 0)
		for range 500 {
			raw.call(modelInfer, false, addSub(1))
			if n := s.gateway.InFlight(); n > most {
				t.Fatalf("%d requests are in flight", n)
			}
			if err := raw.framer.WriteRSTStream(raw.stream, http2.ErrCodeCancel); err != nil {
				t.Fatal(err)
			}
		}
		_ = raw.conn.Close()
		synctest.Wait()
		if n := budget.Reserved(); n != 0 {
			t.Errorf("%d bytes are charged after the end", n)
		}
	})
}

// Of a connection that is closed for what its client does, the address is reported.
func TestAClosedConnectionIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reports []string
		s := serveWith(t, rpc.Options{Closed: func(peer net.Addr, cause *errs.Error) {
			reports = append(reports, fmt.Sprint(peer, " ", cause.Reason))
		}})
		raw := s.dialRaw(t, 0)
		for range 20_000 {
			if raw.framer.WriteSettingsAck() != nil {
				break
			}
		}
		synctest.Wait()
		if len(reports) != 1 || reports[0] != "bufconn connection_flooded" {
			t.Errorf("%q", reports)
		}
	})
}
