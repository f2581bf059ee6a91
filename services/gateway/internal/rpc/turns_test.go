package rpc_test

import (
	"testing"
	"testing/synctest"

	"golang.org/x/net/http2"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc"
	"github.com/nereid-serving/nereid/services/gateway/internal/turns"
)

// While all turns are taken, clients whose calls are served are served on, and others wait.
func TestClientsWhoseCallsAreNotServedTakeTurns(t *testing.T) {
	unknown := &inference.ModelInferRequest{ModelName: "unknown"}
	for name, c := range map[string]struct {
		before func(t *testing.T, raw *rawClient)
		served bool
	}{
		"a new client":    {func(*testing.T, *rawClient) {}, false},
		"a served client": {func(_ *testing.T, raw *rawClient) { raw.call(modelInfer, false, addSub(1)) }, true},
		"a served stream": {func(_ *testing.T, raw *rawClient) { raw.call(modelStreamInfer, true, addSub(1)) }, true},
		"a served probe":  {func(_ *testing.T, raw *rawClient) { raw.call(serverLive, false, &inference.ServerLiveRequest{}) }, true},
		"a client of unknown models": {func(_ *testing.T, raw *rawClient) {
			raw.call(modelInfer, false, addSub(1))
			raw.call(modelInfer, false, unknown)
		}, false},
		"a stream of unknown models": {func(_ *testing.T, raw *rawClient) { raw.call(modelStreamInfer, true, addSub(1), unknown) }, false},
		"a client that resets its calls before they come to a model": {func(t *testing.T, raw *rawClient) {
			raw.call(modelInfer, false, addSub(1))
			synctest.Wait()
			raw.open(modelInfer)
			if err := raw.framer.WriteRSTStream(raw.stream, http2.ErrCodeCancel); err != nil {
				t.Fatal(err)
			}
		}, false},
		"a client that cancels a call once it is served": {func(t *testing.T, raw *rawClient) {
			raw.call(modelStreamInfer, true, addSub(1))
			synctest.Wait()
			if err := raw.framer.WriteRSTStream(raw.stream, http2.ErrCodeCancel); err != nil {
				t.Fatal(err)
			}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all := turns.New(1)
				s := serveWith(t, rpc.Options{Turns: all})
				raw := s.dialRaw(t, 1<<20)
				c.before(t, raw)
				synctest.Wait()
				held := all.Client().Take()
				id := raw.call(modelInfer, false, addSub(1))
				synctest.Wait() // lets no time pass, in which the turn ends by itself
				if how := raw.endOf(id); (how == "0") != c.served {
					t.Errorf("the call has ended as %q while all turns are taken", how)
				}
				held.Release()
				synctest.Wait()
				if how := raw.endOf(id); how != "0" {
					t.Errorf("the call has ended as %q", how)
				}
			})
		})
	}
}

// A call that waits for its model or its client has no turn.
func TestACallThatWaitsPassesItsTurnOn(t *testing.T) {
	for name, open := range map[string]func(raw *rawClient){
		"for its model":                    func(raw *rawClient) { raw.call(modelInfer, false, addSub(1)) },
		"for its message":                  func(raw *rawClient) { raw.open(modelInfer) },
		"for the first request of streams": func(raw *rawClient) { raw.open(modelStreamInfer) },
		"for the next request of streams":  func(raw *rawClient) { raw.call(modelStreamInfer, true, addSub(1)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all := turns.New(1)
				s := serveWith(t, rpc.Options{Turns: all})
				s.models.set(func() { s.models.hold = true })
				open(s.dialRaw(t, 1<<20))
				synctest.Wait()
				took := false
				go func() { took = all.Client().Take() != nil }()
				if synctest.Wait(); !took {
					t.Error("the turn is taken while the call waits")
				}
			})
		})
	}
}

// Calls that never end leave half of the memory to clients whose calls are served, and probes of
// new clients are answered.
func TestStrangersLeaveMemoryToClientsThatAreServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 16 << 20
		budget := memory.NewBudget(limit)
		s := serveWith(t, rpc.Options{Options: path.Options{Budget: budget}, Turns: turns.New(1)})
		s.serves(t)
		stranger := s.dialRaw(t, 1<<20)
		for range 1000 {
			stranger.open(modelStreamInfer)
		}
		synctest.Wait()
		if held := budget.Reserved(); held < limit/4 || held > limit*5/8 {
			t.Errorf("strangers hold %d bytes, of %d", held, int64(limit))
		}
		s.serves(t)
		other := s.dialRaw(t, 1<<20)
		probe, inference := other.call(serverLive, false, &inference.ServerLiveRequest{}), other.call(modelInfer, false, addSub(1))
		synctest.Wait()
		if how := other.endOf(probe); how != "0" {
			t.Errorf("the probe of a new client has ended as %q", how)
		}
		if how := other.endOf(inference); how == "" {
			t.Error("the inference of a client whose probe was served has not ended")
		}
	})
}

// The last eighth of the budget is for clients whose calls are served.
func TestStrangersBeginNothingWhileTheBudgetIsNearlyFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 16 << 20
		budget := memory.NewBudget(limit)
		s := serveWith(t, rpc.Options{Options: path.Options{Budget: budget}, Turns: turns.New(1)})
		s.serves(t)
		budget.Hold(limit*7/8 + 1)
		defer budget.Release(limit*7/8 + 1)
		s.serves(t)
		stranger := s.dialRaw(t, 1<<20)
		id := stranger.call(modelInfer, false, addSub(1))
		synctest.Wait()
		if how := stranger.endOf(id); len(how) == 0 || how[:1] != "8" {
			t.Errorf("a new client: %q", how)
		}
	})
}
