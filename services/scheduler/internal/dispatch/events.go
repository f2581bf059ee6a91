package dispatch

import (
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/services/scheduler/core"
)

// Submit takes ownership of a request, unless the loop has been stopped.
func (l *Loop) Submit(r *infer.Request) error {
	l.mu.Lock()
	stopped := l.stopped
	l.mu.Unlock()
	if stopped {
		return errs.New(errs.Draining, "Server is stopping, scheduler for model has stopped accepting new inference requests").
			WithModel(r.Model.Name)
	}
	it, _ := l.items.Get().(*core.Item)
	it.Request, it.Work, it.Model = r, r.Work, r.Model
	it.BatchSize, it.Bytes = max(r.BatchSize, 1), r.InputBytes()+r.DescriptorBytes()
	it.Deadline, it.Enqueued = r.Deadline, l.clock.Now()
	if c := l.stats.Of(r.Model); c != nil {
		c.Submitted()
		it.Counted = true
	}
	l.post(message{event: core.Event{Kind: core.Submit, Item: it}})
	return nil
}

// Cancel says that nobody waits for a request any more.
func (l *Loop) Cancel(id infer.RequestID) {
	l.post(message{event: core.Event{Kind: core.Cancel, Unit: infer.Unit{Request: id}}})
}

// Configure introduces a loaded content.
func (l *Loop) Configure(ref infer.ModelRef, c *modelconfig.Config) {
	l.stats.Add(ref, c)
	l.post(message{event: core.Event{Kind: core.Configure, Model: &core.Model{Ref: ref, Config: c}}})
}

// Learned reports how long earlier executions of a content took.
func (l *Loop) Learned(ref infer.ModelRef, costs []infer.Cost) {
	l.post(message{event: core.Event{Kind: core.Learned, Model: &core.Model{Ref: ref}, Costs: costs}})
}

// Remove forgets a content once its instances have retired.
func (l *Loop) Remove(ref infer.ModelRef) {
	l.post(message{event: core.Event{Kind: core.Remove, Model: &core.Model{Ref: ref}}})
	l.stats.Remove(ref)
}

// BecomeLeader starts a leadership of the pool under the epoch, under which the store holds the history. The core
// waits for at most the timeout for reports of what workers may have started before.
func (l *Loop) BecomeLeader(epoch uint64, h core.History, timeout time.Duration) {
	l.post(message{event: core.Event{Kind: core.BecomeLeader, Epoch: epoch, History: h, Until: l.clock.Now().Add(timeout)}})
}

// StepDown ends the leadership. Waiting requests return to their gateways as scheduler_deposed, running ones are left
// to their workers, and all workers are forgotten. StepDown returns when that is done.
func (l *Loop) StepDown() {
	l.post(message{event: core.Event{Kind: core.StepDown}})
	settled := make(chan bool, 1)
	for over := false; !over; over = <-settled {
		l.post(message{event: core.Event{Kind: core.Tick}})
		l.post(message{look: func(c *core.Core) { settled <- c.Settled() }})
	}
}

// Recorded says that the store holds what the Record with that version asked for.
func (l *Loop) Recorded(version uint64) {
	l.post(message{event: core.Event{Kind: core.Recorded, Version: version}})
}

// LeaseHeld says which incarnation of a worker has held the lease of a key since a revision.
func (l *Loop) LeaseHeld(key string, incarnation, revision uint64) {
	l.post(message{event: core.Event{
		Kind: core.LeaseHeld, Key: key, Instance: infer.InstanceID{Worker: incarnation}, Revision: revision,
	}})
}

// LeaseEnded says that nobody has held the lease of a key since a revision.
func (l *Loop) LeaseEnded(key string, revision uint64, released bool) {
	l.post(message{event: core.Event{Kind: core.LeaseEnded, Key: key, Revision: revision, Released: released}})
}

// Attach introduces a worker. See [infer.Scheduler].
func (l *Loop) Attach(worker uint64, held infer.Held, e infer.Executor) {
	id := infer.InstanceID{Worker: worker}
	l.post(message{event: core.Event{Kind: core.WorkerConnected, Instance: id, Held: &held}, executor: e})
	l.post(message{event: core.Event{Kind: core.MemoryReported, Instance: id, Memory: held.Memory}})
}

// Detach forgets a worker that has left. The requests that ran there fail, or run again where that is allowed.
func (l *Loop) Detach(worker uint64) {
	l.post(message{event: core.Event{Kind: core.WorkerLost, Instance: infer.InstanceID{Worker: worker}, Released: true}})
}

// instanceGrace is how long requests that wait for an unreachable worker are retained: long enough for its lease to
// end if it is dead.
const instanceGrace = 6 * time.Second

// Disconnect says that a worker cannot be reached, which says nothing about what it runs: it attaches again, or its
// lease ends. The loop owns the requests of the worker's in-flight batches again.
func (l *Loop) Disconnect(worker uint64, under []*infer.Batch) {
	l.post(message{event: core.Event{
		Kind: core.WorkerDisconnected, Instance: infer.InstanceID{Worker: worker}, Batches: under, Until: l.clock.Now().Add(instanceGrace),
	}})
}

// Return returns a batch that its worker has not accepted: its requests wait again.
func (l *Loop) Return(b *infer.Batch, err error) {
	l.post(message{event: core.Event{Kind: core.BatchReturned, Batches: []*infer.Batch{b}, Reason: errs.Of(err)}})
}

// Leave says that a gateway cannot be reached: its waiting requests are dropped. The gateway resubmits those that it
// still wants.
func (l *Loop) Leave(origin uint64) {
	l.post(message{event: core.Event{Kind: core.GatewayDisconnected, Origin: origin}})
}

// Grant adds credits of an instance.
func (l *Loop) Grant(g infer.Grant) {
	l.post(message{event: core.Event{Kind: core.Granted, Grant: &g}})
}

// Retire asks for an instance to be drained.
func (l *Loop) Retire(id infer.InstanceID) {
	l.post(message{event: core.Event{Kind: core.Retire, Instance: id}})
}

// InstanceFree says that an instance can accept its next batch.
func (l *Loop) InstanceFree(f *infer.InstanceFree) {
	l.post(message{event: core.Event{Kind: core.InstanceFree, Ended: f}})
}

// UnitDone ends a unit after its batch's InstanceFree.
func (l *Loop) UnitDone(d infer.UnitDone) {
	l.post(message{event: core.Event{Kind: core.UnitDone, Done: &d}})
}
