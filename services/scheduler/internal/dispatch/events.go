package dispatch

import (
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/services/scheduler/internal/core"
)

// Submit takes a request over, unless the loop has been stopped.
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
	it.Rows, it.Bytes = max(r.Rows, 1), r.InputBytes()
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
	l.post(message{event: core.Event{Kind: core.Cancel, Request: id}})
}

// Configure makes a loaded content known.
func (l *Loop) Configure(ref infer.ModelRef, c *modelconfig.Config) {
	l.stats.Add(ref, c)
	l.post(message{event: core.Event{Kind: core.Configure, Model: &core.Model{Ref: ref, Config: c}}})
}

// Remove forgets a content when its instances have retired.
func (l *Loop) Remove(ref infer.ModelRef) {
	l.post(message{event: core.Event{Kind: core.Remove, Model: &core.Model{Ref: ref}}})
	l.stats.Remove(ref)
}

// Lead begins a term: the pool is the scheduler's under the epoch. The workers
// are those whose leases are alive; of each the loop must hear what it has
// begun, but waits no longer than the time given. It is blind where another
// worker has died since the scheduler before may have.
func (l *Loop) Lead(epoch uint64, workers []uint64, blind bool, patience time.Duration) {
	l.post(message{event: core.Event{Kind: core.Lead, Epoch: epoch, Workers: workers, Blind: blind, Until: l.clock.Now().Add(patience)}})
}

// Resign ends the term. What waits goes back to its gateways as
// scheduler_deposed, what runs is left to its workers, and all workers are
// forgotten. It returns when that is done.
func (l *Loop) Resign() {
	done := make(chan struct{})
	l.post(message{event: core.Event{Kind: core.Resign}})
	l.post(message{look: func(*core.Core) { close(done) }})
	<-done
}

// Attach introduces a worker. See [infer.Scheduler].
func (l *Loop) Attach(worker uint64, held infer.Held, e infer.Executor) {
	l.post(message{event: core.Event{Kind: core.Attached, Instance: infer.InstanceID{Worker: worker}, Held: &held}, executor: e})
}

// Detach forgets a worker and fails what ran there, or has it run again where
// that is allowed.
func (l *Loop) Detach(worker uint64) {
	l.post(message{event: core.Event{Kind: core.Detached, Instance: infer.InstanceID{Worker: worker}}})
}

// absence is for how long what waits for a worker is kept that cannot be
// reached: long enough for its lease to end if it is dead.
const absence = 6 * time.Second

// Disconnect says that a worker cannot be reached, which says nothing about
// what it runs: it attaches again, or Detach says that it is dead. The requests
// of its orders under way are the loop's again.
func (l *Loop) Disconnect(worker uint64, under []*infer.Order) {
	l.post(message{event: core.Event{
		Kind: core.Parted, Instance: infer.InstanceID{Worker: worker}, Orders: under, Until: l.clock.Now().Add(absence),
	}})
}

// Refuse takes an order back that its worker has not taken over: its requests
// wait again.
func (l *Loop) Refuse(o *infer.Order, err error) {
	l.post(message{event: core.Event{Kind: core.Refused, Orders: []*infer.Order{o}, Reason: errs.Of(err)}})
}

// Leave says that a gateway cannot be reached: what waits for it is dropped. It
// submits again what it still wants.
func (l *Loop) Leave(origin uint64) {
	l.post(message{event: core.Event{Kind: core.Left, Origin: origin}})
}

// Grant offers an instance's credits.
func (l *Loop) Grant(g infer.Grant) {
	l.post(message{event: core.Event{Kind: core.Granted, Grant: &g}})
}

// Retire asks for an instance to be drained.
func (l *Loop) Retire(id infer.InstanceID) {
	l.post(message{event: core.Event{Kind: core.Retire, Instance: id}})
}

// Complete ends an order.
func (l *Loop) Complete(c *infer.Completion) {
	l.post(message{event: core.Event{Kind: core.Completed, Completion: c}})
}
