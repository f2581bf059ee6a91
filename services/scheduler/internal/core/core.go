package core

import (
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/invariant"
	"github.com/nereid-serving/nereid/libs/mono"
)

// Counts says what became of all items since the start.
type Counts struct {
	// Refused items were never admitted.
	Refused uint64
	// Admitted = Completed + Cancelled + Expired + Lost + in flight.
	Admitted, Completed, Cancelled, Expired, Lost uint64
}

// Core is the scheduler of one pool. It is not safe for concurrent use.
type Core struct {
	epoch     uint64
	limits    Limits
	models    map[infer.ModelRef]*model
	instances map[infer.InstanceID]*instance
	items     map[infer.RequestID]*Item
	orders    map[uint64]*Batch
	lastOrder uint64
	timers    timers

	waiting load
	counts  Counts

	actions []Action
	free    []*Batch // for reuse
	done    []*Batch // named by the last step's actions
	again   []*model // to be scheduled, within expire
}

// New makes an empty core.
func New(limits Limits) *Core {
	return &Core{
		limits:    limits,
		models:    make(map[infer.ModelRef]*model),
		instances: make(map[infer.InstanceID]*instance),
		items:     make(map[infer.RequestID]*Item),
		orders:    make(map[uint64]*Batch),
	}
}

// SetEpoch sets the epoch of the orders from now on: that of the lease by
// which the scheduler holds its pool.
func (c *Core) SetEpoch(epoch uint64) { c.epoch = epoch }

// Counts returns the totals.
func (c *Core) Counts() Counts { return c.counts }

// InFlight is the number of items that wait or run.
func (c *Core) InFlight() int { return len(c.items) }

// Oldest is when the first item came that waits for each loaded content; those
// for which nothing waits are there with 0.
func (c *Core) Oldest() map[infer.ModelRef]mono.Time {
	oldest := make(map[infer.ModelRef]mono.Time, len(c.models))
	for ref, m := range c.models {
		oldest[ref] = m.policy.Oldest()
	}
	return oldest
}

// NextWake is when the core wants a Tick if nothing else happens before; 0 is
// never.
func (c *Core) NextWake() mono.Time { return c.timers.next() }

// Step takes one event at the time now, which never runs backwards. The
// returned actions, and the batches and completions that they name, are valid
// until the next Step.
func (c *Core) Step(now mono.Time, e *Event) []Action {
	clear(c.actions)
	c.actions = c.actions[:0]
	c.recycle()
	c.expire(now)
	c.handle(now, e)
	if invariant.Enabled {
		c.check()
	}
	return c.actions
}

func (c *Core) handle(now mono.Time, e *Event) {
	switch e.Kind {
	case Submit:
		c.submit(now, e.Item)
	case Cancel:
		c.cancel(now, e.Request)
	case Configure:
		c.configure(now, e.Model)
	case Remove:
		c.remove(e.Model.Ref)
	case Granted:
		c.grant(now, e.Grant)
	case Retire:
		c.retire(now, e.Instance)
	case Completed:
		c.complete(now, e.Completion)
	case Detached:
		c.detach(now, e.Instance.Worker)
	case Tick:
	}
}

func (c *Core) act(a Action) { c.actions = append(c.actions, a) }

// submit admits an item or refuses it.
func (c *Core) submit(now mono.Time, it *Item) {
	m := c.models[it.Model]
	if reason, retry := c.admit(now, m, it); reason != "" {
		c.counts.Refused++
		c.act(Action{Kind: Finish, Item: it, Reason: reason, Retry: retry})
		return
	}
	it.model = m
	it.timer.item = it
	c.counts.Admitted++
	c.items[it.Work.Request] = it
	c.waiting.add(it, 1)
	m.waiting.add(it, 1)
	c.timers.set(&it.timer, mono.Earliest(it.Deadline, it.timeout))
	c.schedule(now, m)
}

// admit hands the item to its model's policy unless there is a reason not to.
func (c *Core) admit(now mono.Time, m *model, it *Item) (errs.Reason, time.Duration) {
	switch {
	case m == nil:
		return errs.ModelNotReady, 0
	case len(m.instances) == 0:
		return errs.NoWorker, 0
	case !it.doneBy(now):
		return errs.DeadlineQueue, 0
	case c.items[it.Work.Request] != nil:
		return errs.AlreadyExists, 0
	}
	if end := m.predict(now, it); !it.doneBy(end) {
		if !m.mayTry(now, it) {
			return errs.DeadlineUnmeetable, end.Sub(it.Deadline)
		}
		it.tried = true
	}
	if reason := m.policy.Add(it); reason != "" {
		return reason, 0
	}
	if !c.makeRoom(now, m, it) {
		m.policy.Remove(it)
		return errs.QueueFull, 0
	}
	return "", 0
}

// complete ends an order and gives its instance the next one.
func (c *Core) complete(now mono.Time, done *infer.Completion) {
	in := c.instances[done.Instance]
	if in != nil {
		in.credits += done.Credits
	}
	b := c.orders[done.Order]
	if b == nil || b.instance != in {
		return
	}
	delete(c.orders, done.Order)
	if in.running--; in.running == 0 {
		in.busyUntil = now
	}
	in.model.lastEnd = now
	if done.Executions == 1 {
		in.learn(b.Rows, done.Timing.Done.Sub(done.Timing.Start))
	}
	for _, it := range b.Items {
		c.forget(it)
	}
	c.counts.Completed += uint64(len(b.Items))
	c.act(Action{Kind: Finished, Batch: b, Completion: done})
	c.done = append(c.done, b)
	c.schedule(now, in.model)
}

// recycle takes back the batches that the last step's actions named.
func (c *Core) recycle() {
	for i, b := range c.done {
		b.reset()
		c.free = append(c.free, b)
		c.done[i] = nil
	}
	c.done = c.done[:0]
}

func (c *Core) newBatch() *Batch {
	if n := len(c.free); n > 0 {
		b := c.free[n-1]
		c.free = c.free[:n-1]
		return b
	}
	return &Batch{}
}

// check holds the core's books against each other.
func (c *Core) check() {
	waiting, running := 0, 0
	for _, m := range c.models {
		waiting += m.policy.Len()
		invariant.Check(m.waiting.requests == m.policy.Len(), "%d items of %v in its queue, %d counted", m.policy.Len(), m.ref, m.waiting.requests)
		invariant.Check(!m.stalls(), "%d items of %v wait beside a free instance, and no time is set to look again", m.policy.Len(), m.ref)
	}
	for _, b := range c.orders {
		running += len(b.Items)
	}
	n := c.counts
	invariant.Check(waiting == c.waiting.requests, "%d items in the queues, %d counted", waiting, c.waiting.requests)
	invariant.Check(waiting+running == len(c.items), "%d wait, %d run, %d known", waiting, running, len(c.items))
	invariant.Check(n.Admitted == n.Completed+n.Cancelled+n.Expired+n.Lost+uint64(len(c.items)),
		"%+v does not add up with %d in flight", n, len(c.items))
}
