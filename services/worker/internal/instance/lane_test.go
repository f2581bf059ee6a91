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
		rows = b.BatchSize()
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
	if c.Batch.Number != 9 || c.Instance != id || c.Executions != 2 || c.BatchSize != 6 || rows != 6 || c.Credits != 1 {
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
}

// What has responses to come does not hold up the next batch, and ends with its
// own last response. What the backend forgets fails.
func TestInstanceIsFreeBeforeTheLastResponse(t *testing.T) {
	h := newHarness(t)
	var first backend.Batch
	id := h.open(&engine{execute: func(b backend.Batch) {
		if b.Requests()[0].Work.Request != request(1) {
			answerAll(b)
			return
		}
		first = b
		b.Executed()
		b.Respond(0, &infer.Response{})
		b.Respond(1, &infer.Response{Final: true})
		b.Respond(3, &infer.Response{})
		b.Free()
		b.Free()
	}})
	f := h.run(h.order(1, id, 1, 2, 3, 4))
	more := []infer.UnitEnd{infer.UnitMore, infer.UnitEnded, infer.UnitMore, infer.UnitMore}
	if r := f.Responses; len(r) != 4 || len(r[1].Times) != 1 || !r[1].Empty || r[0].Times != nil {
		t.Errorf("told of responses %+v, want the empty one of the request that has ended", r)
	}
	if diff := cmp.Diff(more, f.Ends); diff != "" || f.Executions != 1 || f.Credits != 1 {
		t.Errorf("told of an instance that is free: %+v: %s", f, diff)
	}
	if f := h.run(h.order(2, id, 9)); f.Batch != batchID(2) || f.Ends != nil {
		t.Errorf("the next batch ended with %+v", f)
	}
	first.Respond(0, &infer.Response{Final: true})
	if d := <-h.done; d.Work.Request != request(1) || d.Outcome != infer.Succeeded || d.FirstResponse == 0 || d.At < d.FirstResponse || d.Batch != batchID(1) ||
		len(d.Responses.Times) != 2 || !d.Responses.Empty {
		t.Errorf("told %+v", d)
	}
	h.executor.Cancel(batchID(1), request(3))
	first.Done()
	for n, want := range []infer.Outcome{infer.Canceled, infer.Failed} {
		if d := <-h.done; d.Work.Request != request(uint64(n)+3) || d.Outcome != want || (d.FirstResponse == 0) != (n == 0) {
			t.Errorf("told %+v, want %v", d, want)
		}
	}
	for n := range uint64(4) {
		h.answers(n + 1)
	}
	h.answers(9)
	if _, n := h.batches.Closed(); n != 0 || len(h.completed) != 0 {
		t.Errorf("%d batches are left in the table, %d ends were told twice", n, len(h.completed))
	}
}

// promptEngine is an engine that may take batches at once.
type promptEngine struct {
	engine
	try func(backend.Batch) bool
}

func (e *promptEngine) TryExecute(b backend.Batch) bool { return e.try(b) }

func TestBatchesArePassedToPromptInstancesByTheirCallers(t *testing.T) {
	h := newPipelinedHarness(t, 1)
	var taken []backend.Batch // without a lock: by this goroutine alone
	e := &promptEngine{try: func(b backend.Batch) bool {
		taken = append(taken, b)
		return true
	}}
	queued := make(chan backend.Batch, 1)
	e.execute = func(b backend.Batch) { queued <- b }
	id := h.open(e)
	h.executor.Execute(h.order(1, id, 1))
	if len(taken) != 1 {
		t.Fatalf("the instance has %d batches when Execute has returned, want 1", len(taken))
	}
	h.executor.Execute(h.order(2, id, 2)) // waits behind the first
	answerAll(taken[0])
	<-h.completed
	answerAll(<-queued)
	<-h.completed
	if len(taken) != 1 {
		t.Error("a batch was passed on before its turn")
	}
	h.answers(1)
	h.answers(2)
}

func TestBatchesThatPromptInstancesDoNotTakeAtOnceAreExecuted(t *testing.T) {
	h := newHarness(t)
	e := &promptEngine{try: func(backend.Batch) bool { return false }}
	brought := make(chan struct{})
	e.execute = func(b backend.Batch) {
		<-brought // Execute may wait: nobody is held up
		answerAll(b)
	}
	id := h.open(e)
	h.executor.Execute(h.order(1, id, 1))
	close(brought)
	if c := <-h.completed; c.Outcomes[0] != infer.Succeeded || c.Executions != 1 {
		t.Errorf("completion %+v", c)
	}
	h.answers(1)
}

func TestPromptInstancesMayPanic(t *testing.T) {
	h := newHarness(t)
	id := h.open(&promptEngine{try: func(backend.Batch) bool { panic("boom") }})
	if c := h.run(h.order(1, id, 1)); c.Outcomes[0] != infer.Failed {
		t.Errorf("completion %+v", c)
	}
	if p := <-h.panics; p.Value != "boom" {
		t.Errorf("told of the panic %+v", p)
	}
	h.answers(1)
}
