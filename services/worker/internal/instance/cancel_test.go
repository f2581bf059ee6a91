package instance_test

import (
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

func TestCancelOfOneRequestLetsTheBatchRun(t *testing.T) {
	h := newHarness(t)
	started, resume := make(chan bool), make(chan bool)
	id := h.open(&engine{execute: func(b backend.Batch) {
		b.OnCancel(func() { t.Error("stopped with a request left") })
		each := make(chan int, 2)
		b.OnCancelEach(func(i int) { each <- i })
		started <- true
		<-resume
		if i := <-each; i != 1 || len(each) > 0 {
			t.Errorf("told of %d and %d more", i, len(each))
		}
		late := make(chan int, 2)
		b.OnCancelEach(func(i int) { late <- i })
		if len(late) > 0 {
			t.Error("told twice")
		}
		if b.Canceled(0) || !b.Canceled(1) {
			t.Errorf("canceled: %v %v, want the second alone", b.Canceled(0), b.Canceled(1))
		}
		answerAll(b)
	}})
	h.executor.Execute(h.order(1, id, 1, 2))
	<-started
	h.executor.Cancel(batchID(1), request(2))
	h.executor.Cancel(batchID(1), request(2))
	h.executor.Cancel(batchID(1), request(99))
	h.executor.Cancel(batchID(99), request(1))
	resume <- true
	c := <-h.completed
	if diff := cmp.Diff([]infer.Outcome{infer.Succeeded, infer.Canceled}, c.Outcomes); diff != "" {
		t.Error(diff)
	}
	h.answers(1)
	h.answers(2)
}

func TestCancelOfTheLastRequestStopsTheBatch(t *testing.T) {
	for name, late := range map[string]bool{"while it runs": false, "before it can be stopped": true} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			started, resume := make(chan bool), make(chan bool)
			id := h.open(&engine{execute: func(b backend.Batch) {
				stopped := make(chan bool)
				if !late {
					b.OnCancel(func() { close(stopped) })
				}
				b.Respond(0, &infer.Response{Final: true}) // has ended: nobody waits for it either
				started <- true
				<-resume
				if late {
					b.OnCancel(func() { close(stopped) })
				}
				<-stopped
				b.Respond(1, &infer.Response{Err: errs.New(errs.Canceled, "")})
				b.Done()
			}})
			h.executor.Execute(h.order(1, id, 1, 2))
			<-started
			h.executor.Cancel(batchID(1), request(2))
			resume <- true
			c := <-h.completed
			if diff := cmp.Diff([]infer.Outcome{infer.Succeeded, infer.Canceled}, c.Outcomes); diff != "" {
				t.Error(diff)
			}
			h.answers(1)
			h.answers(2)
		})
	}
}

// A stop that is still under way when the batch is done must not meet the
// next batch: the completion waits for it.
func TestDoneWaitsForStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		stopping, resume := make(chan bool), make(chan bool)
		id := h.open(&engine{execute: func(b backend.Batch) {
			b.OnCancel(func() {
				close(stopping)
				<-resume
			})
			<-stopping
			b.Done()
		}})
		h.executor.Execute(h.order(1, id, 1))
		synctest.Wait()
		go h.executor.Cancel(batchID(1), request(1))
		synctest.Wait()
		if len(h.completed) != 0 {
			t.Error("completed while the batch was being stopped")
		}
		close(resume)
		if c := <-h.completed; c.Outcomes[0] != infer.Canceled {
			t.Errorf("outcome %v, want Canceled", c.Outcomes[0])
		}
		h.answers(1)
	})
}

// A stop may itself end the batch.
func TestStopMayEndTheBatch(t *testing.T) {
	h := newHarness(t)
	started := make(chan bool)
	id := h.open(&engine{credits: 2, execute: func(b backend.Batch) {
		b.OnCancel(func() {
			b.Respond(0, &infer.Response{Err: errs.New(errs.Canceled, "")})
			b.Done()
		})
		started <- true
	}})
	h.executor.Execute(h.order(1, id, 1))
	<-started
	h.executor.Cancel(batchID(1), request(1))
	if c := <-h.completed; c.Outcomes[0] != infer.Canceled {
		t.Errorf("outcome %v, want Canceled", c.Outcomes[0])
	}
	h.answers(1)
}

func TestCanceledBatchInTheQueueDoesNotRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		resume := make(chan bool)
		runs := 0
		id := h.open(&engine{credits: 2, execute: func(b backend.Batch) {
			runs++
			<-resume
			answerAll(b)
		}})
		h.executor.Execute(h.order(1, id, 1))
		h.executor.Execute(h.order(2, id, 2))
		synctest.Wait()
		h.executor.Cancel(batchID(2), request(2))
		resume <- true
		<-h.completed
		c := <-h.completed
		if c.Batch.Number != 2 || c.Executions != 0 || c.Outcomes[0] != infer.Canceled || runs != 1 {
			t.Errorf("completion %+v after %d runs", c, runs)
		}
		if r := h.answers(2); errs.Of(r[0].Err) != errs.Canceled {
			t.Errorf("failed for %q, want cancelled", errs.Of(r[0].Err))
		}
		h.answers(1)
	})
}
