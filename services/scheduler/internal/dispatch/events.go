package dispatch

import (
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

// Attach introduces a worker. See [infer.Scheduler].
func (l *Loop) Attach(worker uint64, e infer.Executor) {
	l.post(message{event: core.Event{Instance: infer.InstanceID{Worker: worker}}, executor: e})
}

// Detach forgets a worker and fails what ran there.
func (l *Loop) Detach(worker uint64) {
	l.post(message{event: core.Event{Kind: core.Detached, Instance: infer.InstanceID{Worker: worker}}})
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
