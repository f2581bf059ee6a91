package instance_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

// The last response of each request says where its time went, and which part of that of
// the instance is its own, by rows.
func TestResponsesSayWhatTheirExecutionTook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		id := h.open(&engine{execute: func(b backend.Batch) {
			<-time.After(10 * time.Millisecond)
			b.InputDone()
			b.Respond(0, &infer.Response{})
			<-time.After(20 * time.Millisecond)
			b.InferDone()
			<-time.After(10 * time.Millisecond)
			b.Respond(0, &infer.Response{Final: true})
			b.Respond(1, &infer.Response{Err: errs.New(errs.ExecutionFailed, "no")})
			b.Done()
		}})
		o := h.order(1, id, 1, 2)
		o.Requests[1].BatchSize = 6
		for i := range o.Enqueued {
			o.Enqueued[i] = h.clock.Now()
		}
		<-time.After(5 * time.Millisecond)
		h.run(o)
		first, second := h.answers(1), h.answers(2)
		if first[0].Execution != (infer.Execution{}) {
			t.Errorf("a response that is not the last says %+v", first[0].Execution)
		}
		want := infer.Execution{
			Batch: batchID(1), Instance: id, BatchSize: 8, Waited: 5 * time.Millisecond, Input: 10 * time.Millisecond, Ran: 30 * time.Millisecond, Output: 10 * time.Millisecond,
			Cost: 10 * time.Millisecond,
		}
		if diff := cmp.Diff(want, first[1].Execution); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		want.Cost = 30 * time.Millisecond
		if diff := cmp.Diff(want, second[0].Execution); diff != "" {
			t.Errorf("of one that has failed (-want +got):\n%s", diff)
		}
		h.close(id)
	})
}

// What was not run has taken nothing.
func TestResponsesOfRequestsThatDidNotRunSayNothing(t *testing.T) {
	h := newHarness(t)
	id := h.open(&engine{execute: func(backend.Batch) { t.Error("it ran") }})
	o := h.order(1, id, 1)
	o.LatestStart = 1
	h.run(o)
	if got := h.answers(1)[0].Execution; got != (infer.Execution{}) {
		t.Errorf("%+v", got)
	}
}
