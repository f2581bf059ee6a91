package instance_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

// end ends a call.
func end(receive func(*infer.Response)) func() {
	receive(&infer.Response{Final: true})
	return func() {}
}

// A call has what its parent is, and the tenant, the class and the latest deadline of those
// who wait for it.
func TestCallsHaveTheirParents(t *testing.T) {
	unit := func(n uint64) infer.Unit { return infer.Unit{Request: request(n), Attempt: 1} }
	for name, tt := range map[string]struct {
		deadlines [2]mono.Time
		parent    int
		want      infer.Call
	}{
		"the batch": {
			[2]mono.Time{2000, 1000},
			backend.AllRequests,
			infer.Call{Parent: infer.Parent{Batch: batchID(1), Unit: unit(1)}, Tenant: "a", CostClass: "high", Deadline: 2000},
		},
		"a batch that somebody always waits for": {
			[2]mono.Time{2000, 0},
			backend.AllRequests,
			infer.Call{Parent: infer.Parent{Batch: batchID(1), Unit: unit(1)}, Tenant: "a", CostClass: "high"},
		},
		"a request": {
			[2]mono.Time{2000, 1000},
			1,
			infer.Call{Parent: infer.Parent{Batch: batchID(1), Unit: unit(2), Alone: true}, Tenant: "b", CostClass: "low", Deadline: 1000},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			var got infer.Call
			h.calls = func(c *infer.Call, receive func(*infer.Response)) func() {
				got = *c
				return end(receive)
			}
			id := h.open(&engine{execute: func(b backend.Batch) {
				b.Call(tt.parent, &infer.Call{}, func(*infer.Response) {})
				answerAll(b)
			}})
			of := h.order(1, id, 1, 2)
			for i, tenant := range []string{"a", "b"} {
				r := of.Requests[i]
				r.Tenant, r.CostClass, r.Deadline = tenant, []string{"high", "low"}[i], tt.deadlines[i]
			}
			h.run(of)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Calls are canceled when nobody waits for their parents, and not before.
func TestCallsAreCanceledWithTheirParents(t *testing.T) {
	for name, tt := range map[string]struct {
		parent   int
		ended    []int // requests that have their last responses before
		canceled []uint64
		want     bool
	}{
		"all":                             {backend.AllRequests, nil, []uint64{1, 2}, true},
		"one of all":                      {backend.AllRequests, nil, []uint64{2}, false},
		"one of all, the other has ended": {backend.AllRequests, []int{0}, []uint64{2}, true},
		"its own":                         {1, nil, []uint64{2}, true},
		"another's":                       {1, nil, []uint64{1}, false},
		"another's, its own has ended":    {1, []int{1}, []uint64{1}, true},
		"its own, which had ended":        {1, []int{1}, []uint64{2}, false},
		"all, which had ended":            {backend.AllRequests, []int{0, 1}, []uint64{1, 2}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			canceled := false
			h.calls = func(*infer.Call, func(*infer.Response)) func() { return func() { canceled = true } }
			id := h.open(&engine{execute: func(b backend.Batch) {
				b.Call(tt.parent, &infer.Call{}, func(*infer.Response) {})
				for _, i := range tt.ended {
					b.Respond(i, &infer.Response{Final: true})
				}
				for _, n := range tt.canceled {
					h.executor.Cancel(batchID(1), request(n))
				}
				answerAll(b)
			}})
			h.run(h.order(1, id, 1, 2))
			if canceled != tt.want {
				t.Errorf("canceled: %t, want %t", canceled, tt.want)
			}
		})
	}
}

// A cancellation that comes while a call is made meets it.
func TestCallsAreCanceledWhileTheyAreMade(t *testing.T) {
	h := newHarness(t)
	canceled := 0
	h.calls = func(*infer.Call, func(*infer.Response)) func() {
		h.executor.Cancel(batchID(1), request(1))
		return func() { canceled++ }
	}
	id := h.open(&engine{execute: func(b backend.Batch) {
		b.Call(backend.AllRequests, &infer.Call{}, func(*infer.Response) {})
		answerAll(b)
	}})
	h.run(h.order(1, id, 1))
	if canceled != 1 {
		t.Errorf("canceled %d times, want once", canceled)
	}
}

// A call for which nobody waits is not made, and its inputs are given up.
func TestCallsForWhichNobodyWaitsAreNotMade(t *testing.T) {
	for name, tt := range map[string]struct {
		parent int
		before func(*harness, backend.Batch)
	}{
		"a request that has ended": {0, func(_ *harness, b backend.Batch) { b.Respond(0, &infer.Response{Final: true}) }},
		"a request that was canceled": {0, func(h *harness, _ backend.Batch) {
			h.executor.Cancel(batchID(1), request(1))
		}},
		"a batch that was canceled": {backend.AllRequests, func(h *harness, _ backend.Batch) {
			h.executor.Cancel(batchID(1), request(1))
			h.executor.Cancel(batchID(1), request(2))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.calls = func(*infer.Call, func(*infer.Response)) func() {
				t.Error("the call is made")
				return func() {}
			}
			freed := 0
			id := h.open(&engine{execute: func(b backend.Batch) {
				tt.before(h, b)
				input := tensor.Wrap(nil, false, func(*tensor.Buffer) { freed++ })
				var got *infer.Response
				b.Call(tt.parent, &infer.Call{Inputs: []infer.Tensor{{Data: tensor.InBuffer(input, 0, 0)}}}, func(r *infer.Response) { got = r })()
				if got == nil || !got.Final || errs.Of(got.Err) != errs.Canceled {
					t.Errorf("got %+v", got)
				}
				answerAll(b)
			}})
			h.run(h.order(1, id, 1, 2))
			if freed != 1 {
				t.Errorf("the input was released %d times", freed)
			}
		})
	}
}

// A call goes on when its parent has ended, whoever has the batch's memory then.
func TestCallsOutliveTheirParents(t *testing.T) {
	h := newHarness(t)
	var respond func(*infer.Response)
	canceled := false
	h.calls = func(_ *infer.Call, receive func(*infer.Response)) func() {
		respond = receive
		return func() { canceled = true }
	}
	var ends []bool
	call := true
	id := h.open(&engine{execute: func(b backend.Batch) {
		if call {
			b.Call(backend.AllRequests, &infer.Call{}, func(r *infer.Response) { ends = append(ends, r.Final) })
		}
		call = false
		answerAll(b)
	}})
	h.run(h.order(1, id, 1))
	h.run(h.order(2, id, 2))
	respond(&infer.Response{})
	respond(&infer.Response{Final: true})
	if diff := cmp.Diff([]bool{false, true}, ends); diff != "" || canceled {
		t.Errorf("canceled %t; (-want +got):\n%s", canceled, diff)
	}
}
