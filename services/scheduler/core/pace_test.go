package core

import (
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
)

// fleet are workers that execute the model m one request at a time, each in a time of its own.
type fleet struct {
	*script
	model *model
	takes map[uint64]time.Duration
	sent  uint64
}

// newFleet has a worker for each of the times, from number 1.
func newFleet(takes ...time.Duration) *fleet {
	ref := infer.ModelRef{Name: "m", Version: 1}
	f := &fleet{script: newScript(), takes: make(map[uint64]time.Duration)}
	f.step(&Event{Kind: BecomeLeader})
	f.step(&Event{Kind: Configure, Model: &Model{Ref: ref, Config: &modelconfig.Config{MaxBatchSize: 1}}})
	for i, took := range takes {
		worker := uint64(i + 1)
		f.takes[worker] = took
		f.connected(worker)
		f.step(&Event{Kind: Granted, Grant: &infer.Grant{Instance: infer.InstanceID{Worker: worker}, Model: ref, Device: "gpu:1", Credits: 1}})
	}
	f.model = f.core.models[ref]
	return f
}

// run sends so many requests at a time, so many times. All instances are free in between.
func (f *fleet) run(rounds, requests int) {
	for range rounds {
		var batches []Decision
		for range requests {
			f.sent++
			it := &Item{
				Request: &infer.Request{}, Work: infer.Work{Request: infer.RequestID{Number: f.sent}}, Model: f.model.ref, BatchSize: 1, Enqueued: f.now,
			}
			for _, d := range f.core.Step(f.now, &Event{Kind: Submit, Item: it}) {
				if d.Kind == Dispatch {
					batches = append(batches, d)
				}
			}
		}
		start := f.now
		f.now = f.now.Add(time.Second)
		for _, b := range batches {
			f.core.Step(f.now, &Event{Kind: InstanceFree, Ended: &infer.InstanceFree{
				Batch: b.Batch, Instance: b.Instance, Credits: 1, Executions: 1,
				Timing: infer.Timing{Start: start, Done: start.Add(f.takes[b.Instance.Worker])},
			}})
		}
	}
}

// expect compares what executions on each worker are estimated to take, as a mean.
func (f *fleet) expect(t *testing.T, want ...time.Duration) {
	t.Helper()
	for i, in := range f.model.instances {
		if got := in.costs.mean(1, shape{}); !near(got, want[i], 0.15) {
			t.Errorf("worker %d is expected to take %v, want %v", i+1, got, want[i])
		}
	}
}

func TestASlowWorkerHasCostsOfItsOwn(t *testing.T) {
	const ms = time.Millisecond
	f := newFleet(10*ms, 30*ms, 10*ms)
	f.run(2*measured, 3)
	f.expect(t, 10*ms, 30*ms, 10*ms)
	f.run(200, 3)
	f.expect(t, 10*ms, 30*ms, 10*ms)
	list, _ := f.core.Costs(f.model.ref)
	if len(list) != 1 || list[0].Device != "gpu" || !near(list[0].Mean, 10*ms, 0.05) {
		t.Errorf("for later schedulers %+v is kept, want what the kind takes", list)
	}

	// It shares the others' again when it is as fast.
	f.takes[2] = 10 * ms
	f.run(4*measured, 3)
	if in := f.model.instances; in[1].costs != in[0].costs {
		t.Error("a worker that is as fast as the others still has costs of its own")
	}
	f.expect(t, 10*ms, 10*ms, 10*ms)
}

// With two workers the slow one makes up a good part of what the kind is known to take.
func TestTheSlowOfTwoWorkersHasCostsOfItsOwn(t *testing.T) {
	const ms = time.Millisecond
	f := newFleet(10*ms, 10*ms)
	f.run(100, 2)
	f.takes[1] = 50 * ms // now it is throttled
	f.run(4*measured, 2)
	f.expect(t, 50*ms, 10*ms)
}

func TestWorkersThatAreAlikeShareCosts(t *testing.T) {
	const ms = time.Millisecond
	for name, f := range map[string]*fleet{
		"one":                      newFleet(10 * ms),
		"a little slower":          newFleet(10*ms, 13*ms, 10*ms),
		"all become slower":        newFleet(10*ms, 10*ms, 10*ms),
		"one stands still, seldom": newFleet(10*ms, 10*ms, 10*ms),
	} {
		f.run(100, len(f.takes))
		switch name {
		case "all become slower", "one":
			for worker := range f.takes {
				f.takes[worker] = 40 * ms
			}
			f.run(200, len(f.takes))
			f.expect(t, 40*ms, 40*ms, 40*ms)
		case "one stands still, seldom":
			for range 20 {
				f.takes[2] = time.Second / 2
				f.run(1, len(f.takes))
				f.takes[2] = 10 * ms
				f.run(20, len(f.takes))
			}
		}
		for _, in := range f.model.instances {
			if in.pace.own != nil {
				t.Errorf("%s: worker %d has costs of its own", name, in.id.Worker)
			}
		}
	}
}

// A worker that gets nothing, since others are faster, is measured again after a while.
func TestASlowWorkerIsMeasuredAgain(t *testing.T) {
	const ms = time.Millisecond
	f := newFleet(10*ms, 40*ms)
	f.run(4*measured, 2)
	f.expect(t, 10*ms, 40*ms)
	f.takes[2] = 10 * ms
	f.run(50, 1) // a second each; the fast one gets them all
	f.expect(t, 10*ms, 40*ms)
	f.run(50, 1)
	f.expect(t, 10*ms, 10*ms)
	f.run(4*measured, 2)
	if in := f.model.instances; in[1].costs != in[0].costs {
		t.Error("a worker that is as fast as the other still has costs of its own")
	}
}

// Instances of a worker that is slow have its costs, also those that come later.
func TestInstancesOfASlowWorkerShareItsCosts(t *testing.T) {
	const ms = time.Millisecond
	f := newFleet(10*ms, 40*ms)
	f.run(4*measured, 2)
	for slot, worker := range map[uint32]uint64{1: 2, 2: 1} {
		f.step(&Event{Kind: Granted, Grant: &infer.Grant{Instance: infer.InstanceID{Worker: worker, Slot: slot}, Model: f.model.ref, Device: "gpu:1", Credits: 1}})
	}
	for _, in := range f.model.instances {
		if want := f.model.instances[0].costs == in.costs; want != (in.id.Worker == 1) {
			t.Errorf("instance %v shares the costs of worker 1: %t", in.id, want)
		}
	}
	f.step(&Event{Kind: Granted, Grant: &infer.Grant{Instance: infer.InstanceID{Worker: 2, Slot: 7}, Model: f.model.ref, Device: "cpu", Credits: 1}})
	if in := f.core.instances[infer.InstanceID{Worker: 2, Slot: 7}]; in.costs != f.model.costsOn("cpu") {
		t.Error("an instance on another kind of device has the costs of a slow one")
	}
}
