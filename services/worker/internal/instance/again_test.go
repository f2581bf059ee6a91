package instance_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/instance"
)

// openIterative opens an instance whose model lets requests run again.
func (h *harness) openIterative(e backend.Instance) infer.InstanceID {
	id := h.executor.Open(instance.Spec{
		Model: infer.ModelRef{Name: "m", Version: 1, Generation: 1}, Name: "m_0_0", Instance: e, Iterative: true,
	})
	h.t.Cleanup(func() { h.close(id) })
	return id
}

// iteration makes the batch of the next iteration of requests, which have the slots of
// their places.
func iteration(id uint64, of *infer.Batch, requests []*infer.Request, slots ...uint32) *infer.Batch {
	next := &infer.Batch{ID: batchID(id), Instance: of.Instance, Requests: requests, Enqueued: of.Enqueued[:len(requests)]}
	for i, r := range requests {
		r.Work.Iteration++
		next.Slots = append(next.Slots, infer.Slot{Index: slots[i]})
	}
	return next
}

// Responses are counted on over the iterations, the batch of each ends its request
// without a final response, and the request's inputs pass to the scheduler and back.
func TestRequestRunsAgain(t *testing.T) {
	h := newHarness(t)
	id := h.openIterative(&engine{execute: func(b backend.Batch) {
		b.Executed()
		for i, r := range b.Requests() {
			if last := r.Work.Request == request(2) || r.Work.Iteration == 2; last {
				b.Respond(i, &infer.Response{Final: true})
				continue
			}
			b.Respond(i, &infer.Response{})
			if !b.Again(i) || b.Again(i) {
				t.Error("a request does not run again once")
			}
			b.Respond(i, &infer.Response{Final: true}) // too late
		}
		b.Done()
	}})
	o := h.order(1, id, 1, 2)
	o.Slots = []infer.Slot{{Index: 3}, {Index: 0}}
	f := h.run(o)
	if diff := cmp.Diff([]infer.UnitEnd{infer.UnitAgain, infer.UnitEnded}, f.Ends); diff != "" || len(f.Again) != 1 || f.Executions != 1 || f.Credits != 1 {
		t.Errorf("told of %+v: %s", f, diff)
	}
	h.answers(2)
	if h.freed[1] != 0 {
		t.Error("the inputs of a request that runs again were released")
	}
	f = h.run(iteration(2, o, f.Again, 3))
	if len(f.Again) != 1 || f.Responses != nil || f.FirstResponses != nil {
		t.Errorf("told of %+v before the last iteration", f)
	}
	f = h.run(iteration(3, o, f.Again, 3))
	if f.Ends != nil || len(f.Responses) != 1 || len(f.Responses[0].Times) != 3 || f.FirstResponses[0] == 0 {
		t.Errorf("told of %+v, want three responses", f)
	}
	if n := len(h.answers(1)); n != 3 {
		t.Errorf("%d responses, want one of each iteration", n)
	}
}

// A slot that has another request forgets what the one before had so far.
func TestAnotherRequestInTheSlotBeginsAnew(t *testing.T) {
	h := newHarness(t)
	again := true
	id := h.openIterative(&engine{execute: func(b backend.Batch) {
		b.Respond(0, &infer.Response{Final: !again})
		if again {
			b.Again(0)
		}
		b.Done()
	}})
	o := h.order(1, id, 1)
	o.Slots = []infer.Slot{{}}
	h.run(o).Again[0].Release() // the scheduler has ended it
	again = false
	o = h.order(2, id, 2)
	o.Slots = []infer.Slot{{}}
	h.run(o)
	h.answers(2) // with index 0
}

// What a client has not read of an iteration counts in those after it, also when a
// batch in between was given back.
func TestWindowOutlivesIterations(t *testing.T) {
	h := newHarness(t)
	id := h.openIterative(&engine{execute: func(b backend.Batch) {
		b.Executed()
		switch r := b.Requests()[0]; r.Work.Iteration {
		case 0:
			for range 128 {
				b.Respond(0, &infer.Response{})
			}
			b.Again(0)
		default:
			select {
			case <-b.Room(0):
				t.Error("there is room, though nobody has read")
			default:
			}
			b.Respond(0, &infer.Response{Final: true})
		}
		b.Done()
	}})
	o := h.order(1, id, 1)
	o.Slots = []infer.Slot{{}}
	f := h.run(o)
	stale := true
	h.fresh = func(mono.Time) bool { return !stale }
	next := iteration(2, o, f.Again, 0)
	kept := next.Requests[0].Inputs[0].Data.Retain() // the harness releases what is returned
	h.executor.Execute(next)
	<-h.refused
	stale, next.Requests[0].Inputs[0].Data = false, kept
	h.run(&infer.Batch{ID: batchID(3), Instance: id, Requests: next.Requests, Enqueued: next.Enqueued, Slots: next.Slots})
	if n := len(h.answers(1)); n != 129 {
		t.Errorf("%d responses, want 129", n)
	}
}

func TestRequestThatMayNotRunAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		iterative, free bool
		before          func(h *harness, b backend.Batch)
		want            errs.Reason
	}{
		"the model is not iterative": {false, false, func(*harness, backend.Batch) {}, errs.ExecutionFailed},
		"it was canceled": {true, false, func(h *harness, _ backend.Batch) {
			h.executor.Cancel(batchID(1), request(1))
		}, errs.Canceled},
		"its instance was free": {true, true, func(_ *harness, b backend.Batch) { b.Free() }, errs.Bug},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			open := h.open
			if tt.iterative {
				open = h.openIterative
			}
			id := open(&engine{execute: func(b backend.Batch) {
				tt.before(h, b)
				if b.Again(0) {
					t.Error("it runs again")
				}
				b.Done()
			}})
			o := h.order(1, id, 1)
			o.Slots = []infer.Slot{{}}
			if f := h.run(o); len(f.Again) != 0 {
				t.Errorf("told of %+v", f)
			}
			if tt.free {
				<-h.done // it ends after that
			}
			if r := h.answers(1); errs.Of(r[0].Err) != tt.want {
				t.Errorf("failed for %v, want %v", r[0].Err, tt.want)
			}
		})
	}
}
