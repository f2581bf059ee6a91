package instance_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/instance"
)

func TestOpenGrantsCreditsUnlessPassive(t *testing.T) {
	h := newHarness(t)
	id := h.open(&engine{credits: 3, execute: answerAll})
	passive := h.executor.Open(instance.Spec{Name: "m_0_1", Passive: true, Instance: &engine{}})
	defer h.close(passive)
	want := []infer.Grant{{
		Instance: id, Model: infer.ModelRef{Name: "m", Version: 1, Generation: 1}, Name: "m_0_0", Device: "cpu", Credits: 3,
	}}
	if diff := cmp.Diff(want, h.grants); diff != "" {
		t.Error(diff)
	}
	if id == passive || id.Worker != worker {
		t.Errorf("instances %v and %v, want two slots of worker %d", id, passive, worker)
	}
}

// A pipelined batch waits until the one before has ended, also where the instance
// ends it after Execute has returned.
func TestPipelinedBatchesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newPipelinedHarness(t, 1)
		running := make(chan backend.Batch, 3)
		id := h.open(&engine{execute: func(b backend.Batch) { running <- b }})
		if g := h.grants[0]; g.Credits != 2 || g.Pipelined != 1 {
			t.Errorf("granted %d credits, %d of them ahead, want 2 and 1", g.Credits, g.Pipelined)
		}
		for n := range uint64(3) {
			h.executor.Execute(h.order(n+1, id, n+1))
		}
		if got := <-h.refused; got != (refusal{3, errs.Bug}) {
			t.Errorf("given back: %+v, want the third order, for which there is no credit", got)
		}
		for n := range uint64(2) {
			synctest.Wait()
			if len(running) != 1 {
				t.Fatalf("%d orders run, want order %d alone", len(running), n+1)
			}
			answerAll(<-running)
			if c := <-h.completed; c.Batch.Number != n+1 || c.Executions != 1 {
				t.Errorf("completion %+v, want order %d executed", c, n+1)
			}
		}
	})
}

// What is ahead on a worker that stood still is given back, and its turn passes
// to the next.
func TestPipelinedBatchesFromBeforeAPauseAreReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newPipelinedHarness(t, 2)
		stale := make(chan bool, 3)
		h.fresh = func(mono.Time) bool { return <-stale }
		running := make(chan backend.Batch, 3)
		id := h.open(&engine{execute: func(b backend.Batch) { running <- b }})
		for n := range uint64(3) {
			h.executor.Execute(h.order(n+1, id, n+1))
		}
		stale <- true
		synctest.Wait()
		stale <- false
		stale <- true
		answerAll(<-running)
		if got := <-h.refused; got != (refusal{2, errs.PeerUnreachable}) {
			t.Errorf("given back: %+v, want order 2", got)
		}
		answerAll(<-running)
		for _, n := range []uint64{1, 3} {
			if c := <-h.completed; c.Batch.Number != n || c.Executions != 1 {
				t.Errorf("completion %+v, want order %d executed", c, n)
			}
		}
	})
}

func TestBatchesThatAreReturned(t *testing.T) {
	h := newHarness(t)
	started, resume := make(chan bool), make(chan bool)
	id := h.open(&engine{execute: func(b backend.Batch) {
		started <- true
		<-resume
		answerAll(b)
	}})
	h.executor.Execute(h.order(1, id, 1))
	<-started
	h.executor.Execute(h.order(2, id, 2))
	h.executor.Execute(h.order(3, infer.InstanceID{Worker: worker, Slot: 99}, 3))
	got := []refusal{<-h.refused, <-h.refused}
	want := []refusal{{2, errs.Bug}, {3, errs.NoWorker}} // beyond the credits; of no instance
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(refusal{})); diff != "" {
		t.Error(diff)
	}
	resume <- true
	if c := <-h.completed; c.Batch.Number != 1 || c.Executions != 1 {
		t.Errorf("completion %+v, want order 1 executed", c)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.responses[2]) + len(h.responses[3]); n != 0 {
		t.Errorf("%d answers to requests that were given back", n)
	}
}

// Orders from before a pause wait behind one that runs on after it.
func TestBatchesFromBeforeAPauseAreReturned(t *testing.T) {
	h := newHarness(t)
	var pause atomic.Int64
	h.fresh = func(accepted mono.Time) bool { return int64(accepted) >= pause.Load() }
	started, resume := make(chan bool), make(chan bool)
	id := h.open(&engine{credits: 2, execute: func(b backend.Batch) {
		started <- true
		<-resume
		answerAll(b)
	}})
	h.executor.Execute(h.order(1, id, 1))
	<-started
	h.executor.Execute(h.order(2, id, 2))
	pause.Store(int64(h.clock.Now()) + 1)
	resume <- true
	if c := <-h.completed; c.Batch.Number != 1 || c.Executions != 1 {
		t.Errorf("completion %+v, want order 1 executed", c)
	}
	if got := <-h.refused; got != (refusal{2, errs.PeerUnreachable}) {
		t.Errorf("given back: %+v", got)
	}
	pause.Store(0)
	h.executor.Execute(h.order(3, id, 3))
	<-started
	resume <- true
	if c := <-h.completed; c.Batch.Number != 3 || c.Executions != 1 {
		t.Errorf("completion %+v, want order 3 executed", c)
	}
}

func TestCloseWaitsForTheSchedulersAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.holdBack = true
		e := &engine{execute: answerAll}
		id := h.open(e)
		closed := make(chan error, 1)
		go func() { closed <- h.executor.Close(t.Context(), id) }()
		synctest.Wait()
		if c := h.run(h.order(1, id, 1)); c.Executions != 1 {
			t.Errorf("an order for a retiring instance was not run: %+v", c)
		}
		if e.closed != 0 {
			t.Error("the instance was closed before it was retired")
		}
		h.executor.Retired(id)
		if err := <-closed; err != nil || e.closed != 1 {
			t.Errorf("Close = %v with %d closes, want one", err, e.closed)
		}
		if err := h.executor.Close(t.Context(), id); err != nil || e.closed != 1 {
			t.Errorf("second Close = %v with %d closes, want none more", err, e.closed)
		}
	})
}

func TestCloseCancelsWhatOutlivesItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.holdBack = true
		e := &engine{execute: func(b backend.Batch) {
			stopped := make(chan bool)
			b.OnCancel(func() { close(stopped) })
			<-stopped
			b.Done()
		}}
		id := h.open(e)
		h.executor.Execute(h.order(1, id, 1))
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := h.executor.Close(ctx, id); err != nil || e.closed != 1 {
			t.Errorf("Close = %v with %d closes, want one", err, e.closed)
		}
		if c := <-h.completed; c.Outcomes[0] != infer.Canceled {
			t.Errorf("outcome %v, want Canceled", c.Outcomes[0])
		}
		h.answers(1)
	})
}

func TestCloseLeavesAnInstanceThatDoesNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		resume := make(chan bool)
		e := &engine{execute: func(b backend.Batch) {
			<-resume
			answerAll(b)
		}}
		id := h.open(e)
		h.executor.Execute(h.order(1, id, 1))
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := h.executor.Close(ctx, id); err == nil || e.closed != 0 {
			t.Errorf("Close = %v with %d closes, want an error and none", err, e.closed)
		}
		close(resume)
		<-h.completed
	})
}

// stoppable ends its batch, or its Close, when it is stopped.
type stoppable struct {
	*engine
	stopped context.Context //nolint:containedctx // done by Stop
	stop    context.CancelFunc
}

func (s stoppable) Stop() bool {
	s.stop()
	return true
}

func (s stoppable) Close() error {
	if s.execute == nil {
		<-s.stopped.Done()
	}
	return s.engine.Close()
}

func TestCloseStopsAnInstanceThatDoesNotEnd(t *testing.T) {
	for name, hung := range map[string]bool{"in a batch": true, "while it is closed": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t)
				in := stoppable{engine: new(engine)}
				in.stopped, in.stop = context.WithCancel(t.Context())
				if hung {
					in.execute = func(b backend.Batch) {
						<-in.stopped.Done()
						b.Respond(0, &infer.Response{Err: errs.New(errs.StubUnhealthy, "stopped")})
						b.Done()
					}
				}
				id := h.executor.Open(instance.Spec{Model: infer.ModelRef{Name: "m"}, Name: "m_0_0", Instance: in})
				if hung {
					h.executor.Execute(h.order(1, id, 1))
				}
				ctx, cancel := context.WithCancel(t.Context())
				closed := make(chan error, 1)
				go func() { closed <- h.executor.Close(ctx, id) }()
				<-time.NewTimer(time.Hour).C
				if len(closed) != 0 {
					t.Fatal("it is closed while there is time")
				}
				start := time.Now()
				cancel()
				if err := <-closed; err != nil || in.closed != 1 || time.Since(start) != backend.StopGrace {
					t.Errorf("Close = %v with %d closes after %v, want one after %v", err, in.closed, time.Since(start), backend.StopGrace)
				}
				if hung {
					if c := <-h.completed; c.Outcomes[0] != infer.Canceled {
						t.Errorf("outcome %v, want Canceled", c.Outcomes[0])
					}
					if r := h.answers(1); errs.Of(r[0].Err) != errs.StubUnhealthy {
						t.Errorf("failed with %v, want the instance's error", r[0].Err)
					}
				}
			})
		})
	}
}

func TestFirstOfSeveralResponsesIsTimed(t *testing.T) {
	h := newHarness(t)
	id := h.open(&engine{execute: func(b backend.Batch) {
		b.InputDone()
		b.Executed()
		b.Respond(1, &infer.Response{})
		b.Respond(1, &infer.Response{})
		b.InferDone()
		answerAll(b)
	}})
	c := h.run(h.order(1, id, 1, 2))
	if len(c.FirstResponses) != 2 || c.FirstResponses[0] != 0 {
		t.Fatalf("first responses %v, want none of the first request", c.FirstResponses)
	}
	if at := c.FirstResponses[1]; at < c.Timing.InputDone || at > c.Timing.InferDone {
		t.Errorf("first response at %v, want between %v and %v", at, c.Timing.InputDone, c.Timing.InferDone)
	}
	if n := len(h.answers(2)); n != 3 {
		t.Errorf("%d responses, want 3", n)
	}
	h.answers(1)
}
