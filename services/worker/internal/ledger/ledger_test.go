package ledger_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/worker/internal/ledger"
)

func order(id uint64) *infer.Order {
	work := infer.Work{Request: infer.RequestID{Origin: 1, Number: id}, Attempt: 2}
	return &infer.Order{ID: id, Epoch: 3, Requests: []*infer.Request{{Work: work}}}
}

func ids(list []ledger.Execution) []uint64 {
	var all []uint64
	for _, e := range list {
		all = append(all, e.Order)
	}
	return all
}

func TestLedgerForgetsTheOldest(t *testing.T) {
	l := ledger.New(3)
	model := infer.ModelRef{Name: "m", Version: 1}
	var records []*ledger.Record
	for id := range uint64(5) {
		records = append(records, l.Begin(order(id), model, infer.Timing{Start: 1}))
	}
	for _, at := range []int{1, 0, 3, 2} {
		l.End(records[at], &infer.Completion{Outcomes: []infer.Outcome{infer.Failed}, Executions: at})
	}
	if diff := cmp.Diff([]uint64{0, 3, 2}, ids(l.Finished())); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]uint64{4}, ids(l.Running())); diff != "" {
		t.Error(diff)
	}
	want := ledger.Execution{
		Order: 2, Epoch: 3, Model: model, Executions: 2, Outcomes: []infer.Outcome{infer.Failed},
		Work: []infer.Work{{Request: infer.RequestID{Origin: 1, Number: 2}, Attempt: 2}},
	}
	if diff := cmp.Diff(want, l.Finished()[2]); diff != "" {
		t.Error(diff)
	}
}

func TestReadersHaveCopies(t *testing.T) {
	l := ledger.New(1)
	record := l.Begin(order(1), infer.ModelRef{}, infer.Timing{})
	l.End(record, &infer.Completion{Outcomes: []infer.Outcome{infer.Succeeded}})
	read := l.Finished()
	before := slices.Clone(read[0].Work)
	for id := range uint64(3) { // recycles the record
		l.End(l.Begin(order(id+5), infer.ModelRef{}, infer.Timing{}), &infer.Completion{})
	}
	if diff := cmp.Diff(before, read[0].Work); diff != "" {
		t.Error(diff)
	}
}

func TestKeepingTheLedgerAllocatesNothing(t *testing.T) {
	l := ledger.New(4)
	o := order(1)
	done := &infer.Completion{Outcomes: []infer.Outcome{infer.Succeeded}}
	run := func() { l.End(l.Begin(o, infer.ModelRef{}, infer.Timing{}), done) }
	for range 10 {
		run()
	}
	if n := testing.AllocsPerRun(100, run); n != 0 {
		t.Errorf("%v allocations per execution, want none", n)
	}
}
