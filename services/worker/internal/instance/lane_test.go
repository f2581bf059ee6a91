package instance_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

func TestBatchReportsWhatRan(t *testing.T) {
	h := newHarness(t)
	var rows int64
	id := h.open(&engine{execute: func(b backend.Batch) {
		rows = b.Rows()
		b.InputDone()
		b.Executed()
		b.Executed()
		b.InferDone()
		b.Respond(1, &infer.Response{})
		b.Respond(0, &infer.Response{Final: true})
		b.Respond(1, &infer.Response{Final: true})
		b.Respond(2, &infer.Response{Err: errs.New(errs.ExecutionFailed, "no")})
		b.Done()
	}})
	c := h.run(h.order(9, id, 1, 2, 3))
	want := []infer.Outcome{infer.Succeeded, infer.Succeeded, infer.Failed}
	if diff := cmp.Diff(want, c.Outcomes); diff != "" {
		t.Error(diff)
	}
	if c.Order != 9 || c.Instance != id || c.Executions != 2 || c.Rows != 6 || rows != 6 || c.Credits != 1 {
		t.Errorf("completion %+v of a batch of %d rows", c, rows)
	}
	tm := c.Timing
	if tm.Start == 0 || tm.InputDone < tm.Start || tm.InferDone < tm.InputDone || tm.Done < tm.InferDone {
		t.Errorf("times out of order: %+v", tm)
	}
	if n := len(h.answers(2)); n != 2 {
		t.Errorf("%d responses to the second request, want 2", n)
	}
	if r := h.answers(3); errs.Of(r[0].Err) != errs.ExecutionFailed {
		t.Errorf("third request failed with %v", r[0].Err)
	}
	h.answers(1)
}

func TestRequestsWithoutAnAnswerFailAsBugs(t *testing.T) {
	for name, execute := range map[string]func(backend.Batch){
		"done without an answer": func(b backend.Batch) {
			b.Respond(0, &infer.Response{Final: true})
			b.Respond(1, &infer.Response{})
			b.Done()
		},
		"panic": func(b backend.Batch) {
			b.Respond(0, &infer.Response{Final: true})
			b.Respond(1, &infer.Response{})
			panic("boom")
		},
		"panic after done": func(b backend.Batch) {
			b.Respond(0, &infer.Response{Final: true})
			b.Respond(1, &infer.Response{})
			b.Done()
			panic("boom")
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			e := &engine{execute: execute}
			id := h.open(e)
			c := h.run(h.order(1, id, 1, 2))
			if diff := cmp.Diff([]infer.Outcome{infer.Succeeded, infer.Failed}, c.Outcomes); diff != "" {
				t.Error(diff)
			}
			h.answers(1)
			if r := h.answers(2); errs.Of(r[1].Err) != errs.Bug {
				t.Errorf("failed for %q, want bug", errs.Of(r[1].Err))
			}
			if name != "done without an answer" {
				if p := <-h.panics; p.Value != "boom" || p.Instance != id || len(p.Stack) == 0 {
					t.Errorf("told of the panic %+v", p)
				}
			}
			e.execute = answerAll // the lane is idle: its goroutine waits for an order
			if c := h.run(h.order(2, id, 3)); c.Outcomes[0] != infer.Succeeded {
				t.Error("the instance did not go on")
			}
		})
	}
}

func TestResponsesAfterTheEndAreReleased(t *testing.T) {
	h := newHarness(t)
	id := h.open(&engine{execute: func(b backend.Batch) {
		late := func() *infer.Response {
			return &infer.Response{Final: true, Outputs: []infer.Tensor{{Data: b.Requests()[0].Inputs[0].Data.Retain()}}}
		}
		twice := late()
		b.Respond(0, &infer.Response{Final: true})
		b.Respond(0, twice)
		b.Done()
	}})
	h.run(h.order(1, id, 1))
	if n := len(h.answers(1)); n != 1 { // checks that the buffer was freed
		t.Errorf("%d responses, want 1", n)
	}
}

func TestForeignErrorsPass(t *testing.T) {
	h := newHarness(t)
	broken := errors.New("broken")
	id := h.open(&engine{execute: func(b backend.Batch) {
		b.Respond(0, &infer.Response{Err: broken})
		b.Done()
	}})
	h.run(h.order(1, id, 1))
	if r := h.answers(1); !errors.Is(r[0].Err, broken) {
		t.Errorf("error %v, want the backend's own", r[0].Err)
	}
}

func TestLateBatchesAreRejected(t *testing.T) {
	h := newHarness(t)
	id := h.open(&engine{execute: func(backend.Batch) { t.Error("the batch was run") }})
	o := h.order(1, id, 1, 2)
	o.LatestStart = 1
	c := h.run(o)
	if diff := cmp.Diff([]infer.Outcome{infer.Rejected, infer.Rejected}, c.Outcomes); diff != "" || c.Executions != 0 || c.Credits != 1 {
		t.Errorf("completion %+v: %s", c, diff)
	}
	for n := uint64(1); n <= 2; n++ {
		if r := h.answers(n); errs.Of(r[0].Err) != errs.DeadlineQueue {
			t.Errorf("request %d failed for %q", n, errs.Of(r[0].Err))
		}
	}
	if got := h.ledger.Finished(); len(got) != 0 {
		t.Errorf("the ledger has %d executions of a batch that never ran", len(got))
	}
}

func TestLedgerKnowsWhatRunsAndWhatRan(t *testing.T) {
	h := newHarness(t)
	started, resume := make(chan bool), make(chan bool)
	id := h.open(&engine{execute: func(b backend.Batch) {
		started <- true
		<-resume
		answerAll(b)
	}})
	h.executor.Execute(h.order(4, id, 1, 2))
	<-started
	running := h.ledger.Running()
	if len(running) != 1 || running[0].Order != 4 || len(running[0].Work) != 2 || running[0].Timing.Start == 0 {
		t.Errorf("running %+v", running)
	}
	resume <- true
	c := <-h.completed
	finished := h.ledger.Finished()
	if len(h.ledger.Running()) != 0 || len(finished) != 1 {
		t.Fatalf("finished %+v", finished)
	}
	if diff := cmp.Diff(c.Outcomes, finished[0].Outcomes); diff != "" || finished[0].Timing != c.Timing {
		t.Errorf("finished %+v, completion %+v", finished[0], c)
	}
}
