package instance_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
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

func TestOrdersThatAreRefused(t *testing.T) {
	h := newHarness(t)
	id := h.open(&engine{execute: answerAll})
	h.run(&infer.Order{ID: 1, Epoch: 5, Instance: id})
	old := h.order(2, id, 1)
	old.Epoch = 4
	stranger := h.order(3, infer.InstanceID{Worker: worker, Slot: 99}, 2)
	stranger.Epoch = 5
	for _, o := range []*infer.Order{old, stranger} {
		c := h.run(o)
		if c.Order != o.ID || c.Executions != 0 || c.Credits != 0 || c.Outcomes[0] != infer.Rejected {
			t.Errorf("order %d: completion %+v, want a rejection without execution or credit", o.ID, c)
		}
	}
	for n := uint64(1); n <= 2; n++ {
		if r := h.answers(n); errs.Of(r[0].Err) != errs.NoWorker {
			t.Errorf("request %d failed for %q, want no_worker", n, errs.Of(r[0].Err))
		}
	}
}

func TestMoreOrdersThanCreditsAreRefused(t *testing.T) {
	h := newHarness(t)
	started, resume := make(chan bool), make(chan bool)
	id := h.open(&engine{execute: func(b backend.Batch) {
		started <- true
		<-resume
		answerAll(b)
	}})
	h.executor.Execute(h.order(1, id, 1))
	<-started
	if c := h.run(h.order(2, id, 2)); c.Order != 2 || c.Executions != 0 || c.Credits != 1 {
		t.Errorf("completion %+v, want order 2 refused and its credit given back", c)
	}
	resume <- true
	if c := <-h.completed; c.Order != 1 || c.Executions != 1 {
		t.Errorf("completion %+v, want order 1 executed", c)
	}
	if r := h.answers(2); errs.Of(r[0].Err) != errs.Bug {
		t.Errorf("excess order failed for %q, want bug", errs.Of(r[0].Err))
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
