package instance_test

import (
	"context"
	"testing"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/batches"
	"github.com/nereid-serving/nereid/services/worker/internal/instance"
)

// pingPong sends the next order when the one before is complete.
type pingPong struct{ done chan *infer.InstanceFree }

func (pingPong) Attach(uint64, infer.Held, infer.Executor) {}
func (pingPong) Detach(uint64)                             {}
func (pingPong) Grant(infer.Grant)                         {}
func (pingPong) Retire(infer.InstanceID)                   {}
func (pingPong) UnitDone(infer.UnitDone)                   {}
func (pingPong) Return(_ *infer.Batch, err error)          { panic(err) }
func (p pingPong) InstanceFree(c *infer.InstanceFree)      { p.done <- c }
func (pingPong) Respond(*infer.Response)                   {}

// lane returns what runs one batch of eight requests, whose responses are
// reused, and what ends it.
func lane() (run, stop func()) {
	const size = 8
	p := pingPong{done: make(chan *infer.InstanceFree, 1)}
	e := instance.NewExecutor(1, instance.Deps{Scheduler: p, Responder: p, Clock: mono.New(), Batches: batches.New()})
	responses, outputs := make([]infer.Response, size), []infer.Tensor{{Name: "OUT"}}
	id := e.Open(instance.Spec{Name: "m_0_0", Passive: true, Instance: &engine{execute: func(batch backend.Batch) {
		batch.InputDone()
		batch.Executed()
		batch.InferDone()
		for i := range responses {
			responses[i] = infer.Response{Final: true, Outputs: outputs}
			batch.Respond(i, &responses[i])
		}
		batch.Done()
	}}})
	o := &infer.Batch{ID: infer.BatchID{Epoch: 1}, Instance: id}
	for n := range uint64(size) {
		o.Requests = append(o.Requests, &infer.Request{Work: infer.Work{Request: request(n)}, BatchSize: 1})
		o.Enqueued = append(o.Enqueued, 1)
	}
	run = func() {
		o.ID.Number++
		e.Execute(o)
		<-p.done
	}
	stop = func() {
		if err := e.Close(context.Background(), id); err != nil {
			panic(err)
		}
	}
	return run, stop
}

// BenchmarkLane is what a lane adds to a batch: queue, wake-up, bookkeeping,
// ledger and completion.
func BenchmarkLane(b *testing.B) {
	run, stop := lane()
	defer stop()
	b.ReportAllocs()
	for b.Loop() {
		run()
	}
}

func TestLaneAllocatesTheCompletionAlone(t *testing.T) {
	run, stop := lane()
	defer stop()
	for range 100 { // fills the ledger
		run()
	}
	if n := testing.AllocsPerRun(200, run); n > 1 {
		t.Errorf("%v allocations per batch, want 1", n)
	}
}
