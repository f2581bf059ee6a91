package rpc_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nereid-serving/nereid/libs/errs"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc"
)

// occupy takes all turns to code large bodies, until the function that it returns is called.
func occupy(t *testing.T, b *memory.Budget) (release func()) {
	t.Helper()
	accounts := make([]memory.Account, max(runtime.GOMAXPROCS(0)/2, 1))
	for i := range accounts {
		accounts[i].Open(b)
		if err := accounts[i].StartCoding(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		for i := range accounts {
			accounts[i].EndCoding()
		}
	}
}

// varints is a message, with its prefix, whose input INPUT0 has so many integers of a byte each.
func varints(t *testing.T, n int, compressed bool) []byte {
	t.Helper()
	field := func(number protowire.Number, content []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), content)
	}
	input := slices.Concat(field(1, []byte("INPUT0")), field(2, []byte("INT64")), field(5, field(3, make([]byte, n))))
	message := slices.Concat(field(1, []byte("add_sub")), field(5, input))
	mark := byte(0)
	if compressed {
		var out bytes.Buffer
		w := gzip.NewWriter(&out)
		if _, err := w.Write(message); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		message, mark = out.Bytes(), 1
	}
	return append(binary.BigEndian.AppendUint32([]byte{mark}, uint32(len(message))), message...)
}

// Large messages that take a processor for long wait for each other, so that small requests
// do not wait for them, and hold little until it is their turn.
func TestLargeMessagesWaitForTheirTurn(t *testing.T) {
	for name, c := range map[string]struct {
		size       int
		compressed bool
		most       int64 // that a waiting call holds
	}{
		"compressed":     {16 << 20, true, 1 << 20},
		"typed contents": {512 << 10, false, 2 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, budget, _ := stalling(t, 256<<20)
				message, free := varints(t, c.size, c.compressed), occupy(t, budget)
				const calls = 4
				clients := make([]*rawClient, 4)
				for i := range clients {
					clients[i] = s.dialRaw(t, math.MaxInt32)
					if clients[i].format = ""; c.compressed {
						clients[i].format = "gzip"
					}
					for range calls {
						clients[i].send(clients[i].open(modelInfer), message, 16<<10, true)
					}
				}
				s.serves(t)
				for i, raw := range clients {
					if len(raw.ended) != 0 {
						t.Errorf("client %d: calls have ended: %v", i, raw.ended)
					}
				}
				if n := budget.Reserved(); n > calls*int64(len(clients))*c.most {
					t.Errorf("%d bytes are charged while all messages wait", n)
				}
				_ = clients[0].conn.Close()
				for id := uint32(1); id < 2*calls; id += 2 {
					if err := clients[1].framer.WriteRSTStream(id, http2.ErrCodeCancel); err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait()
				if n := budget.Reserved(); n > calls*2*c.most {
					t.Errorf("%d bytes are charged after half of the calls have ended", n)
				}
				free()
				synctest.Wait()
				for _, raw := range clients[2:] {
					if len(raw.ended) != calls {
						t.Errorf("%d of %d calls have ended after their turn", len(raw.ended), calls)
					}
				}
				released(t, budget)
			})
		})
	}
}

// A call whose deadline passes while its message waits ends then.
func TestADeadlineHoldsWhileAMessageWaitsForItsTurn(t *testing.T) {
	budget := memory.NewBudget(64 << 20)
	s := serveWith(t, rpc.Options{Options: path.Options{Budget: budget}})
	defer occupy(t, budget)()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := s.client.ModelInfer(ctx, addSub(100_000), grpc.UseCompressor("gzip"))
	if status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("the call has ended with %v", err)
	}
	released(t, budget)
}

// What a message of a call that is no inference may have at most counts as it is decompressed.
func TestOtherMessagesAreSmallAfterDecompression(t *testing.T) {
	budget := memory.NewBudget(64 << 20)
	s := serveWith(t, rpc.Options{Options: path.Options{Budget: budget}})
	defer occupy(t, budget)() // a message that is not small would wait
	message := protowire.AppendBytes(protowire.AppendTag(nil, 15, protowire.BytesType), make([]byte, 16<<20))
	for _, method := range []string{inference.GRPCInferenceService_ServerLive_FullMethodName, inference.GRPCInferenceService_ModelConfig_FullMethodName} {
		err := s.conn.Invoke(t.Context(), method, message, new([]byte), grpc.ForceCodecV2(bare{}), grpc.UseCompressor("gzip"))
		if status.Code(err) != codes.ResourceExhausted || detail[*errdetails.ErrorInfo](status.Convert(err)).GetReason() != "body_too_large" {
			t.Errorf("%s: %v", method, err)
		}
	}
	released(t, budget)
}

// While the budget is exceeded, calls are refused before their messages come. Probes are not.
func TestCallsAreRefusedUnreadWhileTheBudgetIsExceeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, budget, _ := stalling(t, 64<<20)
		budget.Hold(65 << 20)
		raw := s.dialRaw(t, math.MaxInt32)
		unread := raw.open(modelInfer)
		probe := raw.call(serverLive, false, &inference.ServerLiveRequest{})
		named := raw.call(modelReady, false, &inference.ModelReadyRequest{Name: "add_sub"})
		long := raw.call(modelReady, false, &inference.ModelReadyRequest{Name: strings.Repeat("x", 5<<10)})
		synctest.Wait()
		if how := raw.endOf(unread); len(how) == 0 || how[:1] != "8" {
			t.Errorf("an inference: %q", how)
		}
		if how := raw.endOf(probe); how != "0" {
			t.Errorf("a probe: %q", how)
		}
		if how := raw.endOf(named); how != "0" {
			t.Errorf("a probe of a model: %q", how)
		}
		if _, err := s.client.ModelReady(t.Context(), &inference.ModelReadyRequest{Name: "add_sub"}, grpc.UseCompressor("gzip")); err != nil {
			t.Errorf("a compressed probe: %v", err)
		}
		if how := raw.endOf(long); len(how) == 0 || how[:1] != "8" {
			t.Errorf("a probe that is too large: %q", how)
		}
		budget.Release(65 << 20)
		s.serves(t)
		released(t, budget)
	})
}

// A response whose encoding the budget has no memory for is refused, and its client learns why.
func TestResponsesBeyondTheBudgetAreRefused(t *testing.T) {
	const limit = 8 << 20
	budget := memory.NewBudget(limit)
	s := serveWith(t, rpc.Options{Options: path.Options{Budget: budget}})
	s.models.set(func() { s.models.hold = true })
	ended := make(chan error, 1)
	go func() {
		_, err := s.client.ModelInfer(t.Context(), addSub(200)) // as large as its response
		ended <- err
	}()
	<-s.models.submitted
	others := limit - 10<<10 - budget.Reserved()
	budget.Hold(others)
	s.models.release()
	if st := status.Convert(<-ended); st.Code() != codes.ResourceExhausted || detail[*errdetails.ErrorInfo](st).GetReason() != string(errs.MemoryFull) {
		t.Errorf("the call has ended with %v", st)
	}
	releasedBut(t, budget, others)
}
