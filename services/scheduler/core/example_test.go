package core_test

import (
	"fmt"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/scheduler/core"
)

// A simulator brings events to a core in virtual time, and does what it decides.
func Example() {
	c, now := core.New(core.Config{}), mono.Time(time.Second)
	var step func(core.Event)
	step = func(e core.Event) {
		var record uint64
		for _, d := range c.Step(now, &e) {
			switch d.Kind {
			case core.Dispatch:
				fmt.Println("batch", d.Batch.Number, "of size", d.A, "goes to slot", d.Instance.Slot)
			case core.Complete:
				fmt.Println("batch", d.Batch.Number, "is complete")
			case core.Record: // a store would hold c.History() now
				record = uint64(d.A)
			}
		}
		if record != 0 {
			step(core.Event{Kind: core.Recorded, Version: record})
		}
	}
	model, slot := infer.ModelRef{Name: "digits", Version: 1}, infer.InstanceID{Worker: 1, Slot: 7}
	step(core.Event{Kind: core.BecomeLeader, Epoch: 1})
	step(core.Event{Kind: core.Configure, Model: &core.Model{Ref: model, Config: &modelconfig.Config{MaxBatchSize: 8, Batching: &modelconfig.DynamicBatching{}}}})
	step(core.Event{Kind: core.WorkerConnected, Instance: slot, Held: &infer.Held{}})
	step(core.Event{Kind: core.Granted, Grant: &infer.Grant{Instance: slot, Model: model, Credits: 1, Device: "cpu"}})
	for n := range uint64(3) {
		step(core.Event{Kind: core.Submit, Item: &core.Item{
			Request: &infer.Request{}, Work: infer.Work{Request: infer.RequestID{Number: n + 1}}, Model: model, BatchSize: 1, Enqueued: now,
		}})
	}
	now = now.Add(5 * time.Millisecond)
	step(core.Event{Kind: core.InstanceFree, Ended: &infer.InstanceFree{Batch: infer.BatchID{Epoch: 1, Number: 1}, Instance: slot, Credits: 1}})
	// Output:
	// batch 1 of size 1 goes to slot 7
	// batch 1 is complete
	// batch 2 of size 2 goes to slot 7
}
