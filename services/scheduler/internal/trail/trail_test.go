package trail_test

import (
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/scheduler/core"
	"github.com/nereid-serving/nereid/services/scheduler/internal/trail"
)

var (
	ref      = infer.ModelRef{Name: "m", Version: 1}
	instance = infer.InstanceID{Worker: 3, Slot: 1}
)

// told is a core whose steps a trail is told of.
type told struct {
	core  *core.Core
	trail *trail.Trail
	now   mono.Time
}

func (w *told) step(e core.Event) {
	w.trail.Event(w.now, &e)
	stored := uint64(0)
	list := w.core.Step(w.now, &e)
	w.trail.Decided(list)
	for _, d := range list {
		if d.Kind == core.Record {
			stored = uint64(d.A)
		}
	}
	if stored != 0 {
		w.step(core.Event{Kind: core.Recorded, Version: stored})
	}
}

func (w *told) submit(n uint64, within time.Duration) {
	r := &infer.Request{Work: infer.Work{Request: infer.RequestID{Origin: 7, Number: n}, Attempt: 1}, BatchSize: 1}
	it := &core.Item{Request: r, Work: r.Work, Model: ref, BatchSize: 1, Enqueued: w.now}
	if within > 0 {
		it.Deadline = w.now.Add(within)
	}
	w.step(core.Event{Kind: core.Submit, Item: it})
}

// one is the only decision on a request.
func (w *told) one(t *testing.T, n uint64) infer.ExplainedDecision {
	t.Helper()
	list := w.trail.Of(infer.RequestID{Origin: 7, Number: n})
	if len(list) != 1 {
		t.Fatalf("of request %d are known %+v", n, list)
	}
	return list[0]
}

// start is a model of batches that wait 5 ms for others, and take 10 ms.
func start(most int) *told {
	w := &told{core: core.New(core.Config{}), trail: trail.New(most), now: mono.Time(time.Second)}
	w.step(core.Event{Kind: core.BecomeLeader})
	config := &modelconfig.Config{MaxBatchSize: 4, Batching: &modelconfig.DynamicBatching{MaxQueueDelayMicros: 5000}}
	w.step(core.Event{Kind: core.Configure, Model: &core.Model{Ref: ref, Config: config}})
	w.step(core.Event{Kind: core.Learned, Model: &core.Model{Ref: ref}, Costs: []infer.Cost{
		{Device: "cpu", BatchSize: 1, Executions: 20, Mean: 10 * time.Millisecond}, {Device: "cpu", BatchSize: 2, Executions: 20, Mean: 10 * time.Millisecond},
	}})
	w.step(core.Event{Kind: core.WorkerConnected, Instance: instance, Held: &infer.Held{}})
	w.step(core.Event{Kind: core.Granted, Grant: &infer.Grant{Instance: instance, Model: ref, Device: "cpu", Credits: 1}})
	return w
}

func TestTheTrailOfABatch(t *testing.T) {
	w := start(10)
	w.submit(1, time.Second)
	w.now = w.now.Add(2 * time.Millisecond)
	w.submit(2, 0)
	w.now = w.now.Add(3 * time.Millisecond)
	w.step(core.Event{Kind: core.Tick})
	first, second := w.one(t, 1), w.one(t, 2)
	if first.What != "dispatched" || first.Requests != 2 || first.Size != 2 || first.Batch != second.Batch || first.Worker != 3 || first.Instance != 1 {
		t.Errorf("the first: %+v", first)
	}
	if first.Queued != 0.005 || second.Queued != 0.003 || first.Waited != 0.005 || second.Waited != 0.003 || first.WaitedFor != "others to join the batch" {
		t.Errorf("waits: %+v, %+v", first, second)
	}
	if first.Predicted < 0.010 || first.Predicted > 0.020 || second.Predicted != 0 {
		t.Errorf("predicted: %v with a deadline, %v without", first.Predicted, second.Predicted)
	}
	if list := w.trail.Of(infer.RequestID{Origin: 7, Number: 3}); list != nil {
		t.Errorf("of a request that was not there: %+v", list)
	}
}

func TestTheTrailOfARefusal(t *testing.T) {
	w := start(10)
	w.submit(1, 0)
	w.now = w.now.Add(5 * time.Millisecond)
	w.step(core.Event{Kind: core.Tick}) // it runs
	w.submit(2, 12*time.Millisecond)
	if got := w.one(t, 2); got.Reason != string(errs.DeadlineUnmeetable) || got.Batch != "" || got.Predicted < 0.018 {
		t.Errorf("%+v", got)
	}
}

func TestTheTrailEndsWithTheOldest(t *testing.T) {
	w := start(3)
	for n := range uint64(5) {
		w.submit(n+1, time.Nanosecond) // refused
	}
	for n := range uint64(5) {
		if list := w.trail.Of(infer.RequestID{Origin: 7, Number: n + 1}); (len(list) == 1) != (n >= 2) {
			t.Errorf("of request %d are known %+v", n+1, list)
		}
	}
}
