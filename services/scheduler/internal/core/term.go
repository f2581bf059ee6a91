package core

import (
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
)

// term is the time for which the scheduler holds its pool, and what it knows
// then of the time before.
type term struct {
	leads bool
	epoch uint64
	// begun are the requests that the workers have begun as far as is known,
	// and all that were dispatched in this term.
	begun infer.Recent
	// unheard are the workers that may have begun what is not known. Until they
	// are heard of no request is taken that was submitted before; by hearBy at
	// the latest.
	unheard map[uint64]bool
	hearBy  mono.Time
	// blind says that a worker died that was not heard of: a request that an
	// earlier scheduler had may have run there.
	blind bool
	// early are the requests that wait for that.
	early     list
	earlyLoad load
	// patience is until when models without instances are waited for.
	patience mono.Time
	// first is for how long a model is waited for that has had no instance yet.
	first time.Duration
	clock timer
}

func (c *Core) handleTerm(now mono.Time, e *Event) {
	switch e.Kind {
	case Lead:
		c.lead(now, e)
	case Resign:
		c.resign()
	case Attached:
		c.attach(now, e.Instance.Worker, e.Held)
	case Parted:
		c.part(now, e)
	case Refused:
		c.takeBack(now, e.Orders[0], e.Reason)
	case Left:
		c.dropOf(now, e.Origin)
	}
}

// lead begins a term.
func (c *Core) lead(now mono.Time, e *Event) {
	c.leads, c.epoch, c.blind = true, e.Epoch, e.Blind
	c.unheard, c.hearBy, c.patience = make(map[uint64]bool), e.Until, max(c.patience, e.Until)
	c.first = e.Until.Sub(now)
	for _, worker := range e.Workers {
		c.unheard[worker] = true
	}
	for worker := range c.attached {
		delete(c.unheard, worker)
	}
	c.timers.set(&c.clock, e.Until)
	c.takeIn(now)
}

// resign ends the term. What waits goes back to its gateways; what runs is left
// to its workers and the pool's next scheduler.
func (c *Core) resign() {
	for _, b := range c.batches() {
		c.pass(b)
	}
	for _, m := range c.modelsInOrder() {
		for _, it := range c.itemsOf(m) {
			c.counts.Passed++
			c.giveUp(it, errs.SchedulerDeposed)
		}
	}
	for it := c.early.head; it != nil; it = c.early.head {
		c.counts.Passed++
		c.endHeld(it, errs.SchedulerDeposed)
	}
	c.timers.set(&c.clock, 0)
	c.term = term{}
	clear(c.attached)
	clear(c.instances)
	for _, m := range c.modelsInOrder() {
		m.instances, m.retiring, m.met = nil, 0, false
		c.forgetModel(m)
	}
}

// known says what speaks against a request from what is known already: nothing
// for one that is submitted for the first time. One that waits or runs here is
// answered under its newest attempt, since its gateway heeds no other.
func (c *Core) known(now mono.Time, it *Item) errs.Reason {
	if here := c.items[it.Work.Request]; here != nil {
		if it.Work.Attempt <= here.Work.Attempt {
			return errs.AlreadyExists
		}
		here.Work.Attempt = it.Work.Attempt
		return errs.RequestUnderway
	}
	if it.Work.Attempt <= 1 || !c.leads {
		return ""
	}
	if c.repeats(it) {
		return ""
	}
	switch c.begun.Look(it.Work.Request) {
	case infer.Present: // and not here any more
		return errs.RequestFinished
	case infer.Forgotten:
		return errs.InstanceCrashed
	}
	if c.elsewhere(it) && (now >= c.hearBy && len(c.unheard) > 0 || len(c.unheard) == 0 && c.blind) {
		return errs.InstanceCrashed // a worker may have begun it, and does not say
	}
	return ""
}

// uncertain reports whether a worker may still say that it has begun a request.
func (c *Core) uncertain(now mono.Time, it *Item) bool {
	return c.elsewhere(it) && len(c.unheard) > 0 && now < c.hearBy && !c.repeats(it)
}

// repeats reports whether a request may run twice.
func (c *Core) repeats(it *Item) bool {
	m := c.models[it.Model]
	return m != nil && m.repeats
}

// elsewhere reports whether the request was first submitted to an earlier
// scheduler.
func (c *Core) elsewhere(it *Item) bool { return it.Work.Epoch != 0 && it.Work.Epoch != c.epoch }

// hold keeps an item until it is known whether it runs already.
func (c *Core) hold(now mono.Time, it *Item) {
	switch {
	case !it.doneBy(now):
		c.refuse(it, errs.DeadlineQueue, 0)
		return
	case c.limits.Requests > 0 && c.earlyLoad.requests >= c.limits.Requests,
		c.limits.Bytes > 0 && c.earlyLoad.bytes+it.Bytes > c.limits.Bytes && c.early.n > 0:
		c.refuse(it, errs.QueueFull, 0)
		return
	}
	it.held = true
	it.timer.item = it
	c.counts.Admitted++
	c.items[it.Work.Request] = it
	c.early.push(it)
	c.earlyLoad.add(it, 1)
	c.timers.set(&it.timer, it.Deadline)
}

// takeIn submits what has been held, as far as it need not be held any more.
func (c *Core) takeIn(now mono.Time) {
	for it := c.early.head; c.leads && it != nil; {
		next := it.link.next
		if !c.uncertain(now, it) {
			c.letGo(it)
			c.counts.Admitted--
			c.submit(now, it)
		}
		it = next
	}
}

// endHeld ends an item that is held.
func (c *Core) endHeld(it *Item, reason errs.Reason) {
	c.letGo(it)
	c.act(Action{Kind: Finish, Item: it, Reason: reason})
}

func (c *Core) letGo(it *Item) {
	c.early.remove(it)
	c.earlyLoad.add(it, -1)
	c.forget(it)
	it.held = false
}

// hear notes that a worker need not be waited for: it has said what it has
// begun, or it is dead.
func (c *Core) hear(now mono.Time, worker uint64) {
	if c.unheard[worker] {
		delete(c.unheard, worker)
		c.takeIn(now)
	}
}

// expect waits for instances until the given time.
func (c *Core) expect(until mono.Time) {
	c.patience = max(c.patience, until)
	if c.leads {
		c.timers.set(&c.clock, c.patience)
	}
}

// expectFirst reports whether the first instance that a model has in this term
// is waited for, which is done once. A gateway sends only what it knows to be
// ready: that a worker is there which has not attached yet, and of whose lease
// the scheduler may not have heard.
func (c *Core) expectFirst(now mono.Time, m *model) bool {
	if m.met || c.first <= 0 {
		return false
	}
	m.met = true
	c.expect(now.Add(c.first))
	return true
}

// lookAgain is called when the time is over by which workers should have been
// heard of, or instances granted.
func (c *Core) lookAgain(now mono.Time) {
	c.takeIn(now)
	if now < c.patience {
		c.timers.set(&c.clock, c.patience)
		return
	}
	for _, m := range c.modelsInOrder() {
		if len(m.instances) == 0 {
			c.abandon(now, m)
		}
	}
}

// dropOf drops what waits for a gateway that cannot be reached, and submits it
// again if it is alive.
func (c *Core) dropOf(now mono.Time, origin uint64) {
	for _, m := range c.modelsInOrder() {
		for _, it := range c.itemsOf(m) {
			if it.Work.Request.Origin == origin {
				c.counts.Passed++
				c.giveUp(it, errs.PeerUnreachable)
			}
		}
		c.schedule(now, m)
	}
	for it := c.early.head; it != nil; {
		next := it.link.next
		if it.Work.Request.Origin == origin {
			c.counts.Passed++
			c.endHeld(it, errs.PeerUnreachable)
		}
		it = next
	}
}
