package instance_test

import (
	"testing"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

// pipeline is an instance that begins its batches itself: the test ends them.
type pipeline struct {
	promptEngine
	got []backend.Batch // in the order in which it got them; by the test's goroutine alone
}

func newPipeline() *pipeline {
	p := new(pipeline)
	p.try = func(b backend.Batch) bool {
		b.InputDone()
		p.got = append(p.got, b)
		return true
	}
	return p
}

func (*pipeline) Pipelined() int { return 1 }

func TestPipeliningInstancesGetBatchesBeforeTheirTurns(t *testing.T) {
	h := newHarness(t)
	p := newPipeline()
	id := h.open(p)
	if g := h.grants[0]; g.Credits != 2 || g.Pipelined != 1 {
		t.Errorf("granted %d credits, %d of them for pipelined batches, want 2 and 1", g.Credits, g.Pipelined)
	}
	h.executor.Execute(h.order(1, id, 1))
	h.executor.Execute(h.order(2, id, 2))
	h.executor.Execute(h.order(3, id, 3))
	if got := <-h.refused; got != (refusal{3, errs.Bug}) || len(p.got) != 2 {
		t.Fatalf("%d batches were passed on, and given back was %+v: want 2, and the third", len(p.got), got)
	}
	answerAll(p.got[0])
	first := <-h.completed
	h.executor.Execute(h.order(4, id, 4))
	for _, b := range p.got[1:] {
		answerAll(b)
	}
	second, third := <-h.completed, <-h.completed
	if first.Batch != batchID(1) || second.Batch != batchID(2) || third.Batch != batchID(4) || third.Executions != 1 {
		t.Errorf("ended %v, %v and %v", first.Batch, second.Batch, third.Batch)
	}
	if tm := second.Timing; tm.Start < first.Timing.Done || tm.InputDone < tm.Start || tm.InferDone < tm.InputDone || tm.Done < tm.InferDone {
		t.Errorf("times %+v of a batch behind one that was done at %v", tm, first.Timing.Done)
	}
	for _, n := range []uint64{1, 2, 4} {
		h.answers(n)
	}
}

// What has not begun comes back; what ran before it is not touched, and the instance goes on.
func TestBatchesThatHaveNotBegunAreGivenBack(t *testing.T) {
	h := newHarness(t)
	p := newPipeline()
	id := h.open(p)
	h.executor.Execute(h.order(1, id, 1))
	h.executor.Execute(h.order(2, id, 2))
	p.got[1].GiveBack(errs.New(errs.InstanceAway, "away"))
	if got := <-h.refused; got != (refusal{2, errs.InstanceAway}) {
		t.Errorf("given back: %+v, want the second", got)
	}
	h.executor.Execute(h.order(2, id, 2))
	answerAll(p.got[0])
	answerAll(p.got[2])
	for n := range uint64(2) {
		if c := <-h.completed; c.Batch != batchID(n+1) || c.Executions != 1 || c.Outcomes[0] != infer.Succeeded {
			t.Errorf("completion %+v", c)
		}
	}
	if n := len(h.refused); n != 0 {
		t.Errorf("%d batches more were given back", n)
	}
	h.answers(1)
}

// No batch passes one that the instance has yet to take.
func TestPipelinedBatchesStayInTheirOrder(t *testing.T) {
	h := newHarness(t)
	p := newPipeline()
	pass := p.try
	p.try = func(backend.Batch) bool { return false }
	taking, taken := make(chan struct{}), make(chan backend.Batch)
	p.execute = func(b backend.Batch) {
		<-taking
		taken <- b
	}
	id := h.open(p)
	h.executor.Execute(h.order(1, id, 1)) // is taken by a goroutine
	p.try = pass
	h.executor.Execute(h.order(2, id, 2))
	if len(p.got) != 0 {
		t.Fatal("the second batch was passed on before the first")
	}
	close(taking)
	answerAll(<-taken)
	if c := <-h.completed; c.Batch != batchID(1) {
		t.Errorf("batch %v ended first", c.Batch)
	}
	answerAll(<-taken)
	if c := <-h.completed; c.Batch != batchID(2) {
		t.Errorf("batch %v ended second", c.Batch)
	}
	h.answers(1)
	h.answers(2)
}
