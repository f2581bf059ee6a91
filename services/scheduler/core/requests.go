package core

import (
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
)

// requests is the single table of units: parked until it is known whether they may run, queued, running or, according
// to started, finished.
type requests struct {
	items map[infer.Unit]*Item // by key
	// started are the requests that workers are known to have started, and all that were dispatched under this
	// leadership.
	started infer.Recent
	// severed are those of them that were waiting for another iteration under an earlier scheduler, which alone had
	// their inputs.
	severed  infer.Recent
	gateways map[uint64]*gateway
	parked   list
	recheck  int // how many parked items are to be checked again
	waiting  load
	sweeps   []sweep
	counts   Counts
	// interrupted are the sequences that lost a request before it was known which worker has their state, with the
	// last such request of each.
	interrupted map[sequenceName]infer.RequestID
}

// sequenceName identifies a sequence, wherever its state is.
type sequenceName struct {
	model infer.ModelRef
	id    correlation
}

// gateway holds the waiting requests of one gateway connection.
type gateway struct {
	list
	gone bool // its waiting requests are being handed off
}

// sweep is a set of items that end together and may be many: those that wait for a gateway, for a reason, for a model
// without instances, or in a sequence that is over. It is worked off in parts.
type sweep struct {
	gateway  *gateway
	reason   errs.Reason
	model    *model
	sequence *sequence
}

// stride is how many items of sweeps, and of the parked items, one step works off: few enough to take less than a
// millisecond.
const stride = 250

// Counts says what became of all units since the start: Submitted = Refused + Failed + HandedOff + Completed + in
// flight.
type Counts struct{ Submitted, Refused, Failed, HandedOff, Completed uint64 }

// submit queues or refuses an item, or parks it until it is known which to do.
func (c *Core) submit(it *Item) {
	c.counts.Submitted++
	if kind, reason := c.known(it); reason != "" {
		c.end(it, kind, reason, 0)
		return
	}
	if !c.leads || c.uncertain(it) || c.overtakes(it) {
		c.park(it)
		return
	}
	c.enter(it)
}

// enter queues an item about which nothing else is known, or refuses it.
func (c *Core) enter(it *Item) {
	m := c.models[it.Model]
	if reason, retry := c.admit(m, it); reason != "" {
		c.end(it, Refuse, reason, retry)
		return
	}
	c.enroll(it)
	c.timers.set(&it.timer, mono.Earliest(it.Deadline, it.timeout))
	c.touch(m)
	if c.enterCall(it) {
		c.end(it, Refuse, errs.CallDeadlock, 0)
	}
}

// enroll adds a waiting item to the table.
func (c *Core) enroll(it *Item) {
	g := c.gateways[it.Work.Request.Origin]
	if g == nil {
		g = &gateway{list: list{by: ofGateway}}
		c.gateways[it.Work.Request.Origin] = g
	}
	if it.gateway != g {
		if it.gateway != nil {
			it.gateway.remove(it)
		}
		it.gateway = g
		g.push(it)
	}
	it.timer.item = it
	c.items[keyOf(it.Unit())] = it
}

// known returns how to end an item because of what is already known about it. A first submission has no such reason.
// A unit that waits or runs here is answered under its newest attempt, since its gateway ignores all others.
func (c *Core) known(it *Item) (DecisionKind, errs.Reason) {
	if here := c.items[keyOf(it.Unit())]; here != nil {
		if it.Work.Attempt <= here.Work.Attempt {
			return Refuse, errs.AlreadyExists
		}
		here.Work.Attempt = it.Work.Attempt
		if here.batch == nil {
			c.enroll(here) // its gateway may have reconnected
		} else {
			it.runsOn = here.batch.on()
		}
		return HandOff, errs.RequestUnderway
	}
	if it.Work.Attempt <= 1 || !c.leads || c.repeats(it) {
		return 0, ""
	}
	if c.severed.Lookup(it.Work.Request) == infer.Present {
		return Fail, errs.SequenceLost
	}
	switch c.started.Lookup(it.Work.Request) {
	case infer.Present: // and no longer here
		return HandOff, errs.RequestFinished
	case infer.Forgotten:
		return Fail, errs.InstanceCrashed
	}
	if c.elsewhere(it) && !c.uncertain(it) && (it.Work.Epoch < c.incomplete || it.Work.Epoch > c.epoch) {
		return Fail, errs.InstanceCrashed // a worker may have started it and not reported it
	}
	return 0, ""
}

// uncertain reports whether a worker may still report that it has started an item.
func (c *Core) uncertain(it *Item) bool { return c.reporting() && c.elsewhere(it) && !c.repeats(it) }

// overtakes reports whether an item of a sequence could go before a parked one, or arrives before it is known which
// workers have its sequence.
func (c *Core) overtakes(it *Item) bool {
	return c.inSequence(it) && (c.reporting() || c.recheck > 0)
}

// inSequence reports whether an item belongs to a sequence, as far as its model is known.
func (c *Core) inSequence(it *Item) bool {
	m := c.models[it.Model]
	return it.Request != nil && inSequence(it.Request) && (m == nil || m.batcher == nil || m.sequences != nil)
}

// repeats reports whether an item may run twice.
func (c *Core) repeats(it *Item) bool {
	m := c.models[it.Model]
	return m != nil && m.repeats
}

// elsewhere reports whether an item was first submitted to another scheduler.
func (c *Core) elsewhere(it *Item) bool { return it.Work.Epoch != 0 && it.Work.Epoch != c.epoch }

// park retains an item until it is known whether it may run.
func (c *Core) park(it *Item) {
	switch {
	case !it.doneBy(c.now):
		c.end(it, Refuse, errs.DeadlineQueue, 0)
		return
	case c.config.MaxRequests > 0 && c.waiting.requests >= c.config.MaxRequests,
		c.config.MaxBytes > 0 && c.waiting.bytes+it.Bytes > c.config.MaxBytes && c.waiting.requests > 0:
		c.end(it, Refuse, errs.QueueFull, 0)
		return
	}
	it.parked = true
	c.parked.push(it)
	if c.recheck > 0 {
		c.recheck++
	}
	c.waiting.add(it, 1)
	c.enroll(it)
	c.timers.set(&it.timer, it.Deadline)
}

// unpark checks up to budget parked items again, and queues, refuses or parks each of them. It returns how many it
// checked.
func (c *Core) unpark(budget int) (n int) {
	c.recheck = min(c.recheck, c.parked.n)
	for ; c.recheck > 0 && n < budget; n++ {
		c.recheck--
		it := c.parked.head
		c.parked.remove(it)
		if !c.leads || c.uncertain(it) || c.reporting() && c.overtakes(it) {
			c.parked.push(it)
			continue
		}
		c.leaveWaiting(it)
		delete(c.items, keyOf(it.Unit()))
		if kind, reason := c.known(it); reason != "" {
			c.end(it, kind, reason, 0)
			continue
		}
		c.enter(it)
	}
	return n
}

// end ends an item that does not run.
func (c *Core) end(it *Item, kind DecisionKind, reason errs.Reason, retry time.Duration) {
	undecided := it.parked || it.Work.Attempt > 1 && reason != errs.AlreadyExists
	c.leaveWaiting(it)
	c.forget(it)
	c.count(kind, 1)
	c.decide(Decision{Kind: kind, Reason: reason, Unit: it.Unit(), Instance: it.runsOn, A: int64(retry), item: it})
	c.leaveSequence(it, kind, reason)
	if undecided && it.sequence == nil && c.inSequence(it) {
		c.endUndecided(it, kind, reason)
	}
}

// leaveWaiting removes an item from the lists of waiting items.
func (c *Core) leaveWaiting(it *Item) {
	if it.gateway == nil {
		return
	}
	it.gateway.remove(it)
	it.gateway = nil
	c.waiting.add(it, -1)
	if it.parked {
		it.parked = false
		c.parked.remove(it)
		return
	}
	it.model.queue.remove(it)
	if it.sequence != nil {
		it.sequence.waiting.remove(it)
	}
}

// forget removes an item, which a decision ends, from the table.
func (c *Core) forget(it *Item) {
	if it.timer.item == nil {
		return // it was never in it
	}
	c.timers.set(&it.timer, 0)
	it.timer.item = nil
	delete(c.items, keyOf(it.Unit()))
	c.leaveCall(it)
}

func (c *Core) count(kind DecisionKind, n int) {
	switch kind {
	case Refuse:
		c.counts.Refused += uint64(n)
	case Fail:
		c.counts.Failed += uint64(n)
	case HandOff:
		c.counts.HandedOff += uint64(n)
	case Complete:
		c.counts.Completed += uint64(n)
	}
}

// cancel ends an item that nobody waits for any more, or has its executor abort it if it runs.
func (c *Core) cancel(u infer.Unit) {
	it := c.items[keyOf(u)]
	switch {
	case it == nil:
	case it.batch != nil:
		c.abort(it, errs.Canceled)
	default:
		c.touchOf(it)
		c.end(it, Refuse, errs.Canceled, 0)
	}
}

// touchOf schedules the model of a waiting item to be asked again.
func (c *Core) touchOf(it *Item) {
	if !it.parked {
		c.touch(it.model)
	}
}

// abort tells the executor of a running item, once, that nobody waits for the item any more.
func (c *Core) abort(it *Item, reason errs.Reason) {
	if it.aborted {
		return
	}
	it.aborted = true
	c.timers.set(&it.timer, 0)
	c.decide(Decision{Kind: Abort, Reason: reason, Unit: it.Unit(), Batch: it.batch.ID, item: it, batch: it.batch})
	if it.sequence != nil { // it is unknown whether its state includes the request
		c.interrupt(it.sequence, reason)
	}
}

// expire ends items that have waited too long, aborts running ones whose clients no longer wait, and wakes models,
// workers and the pool.
func (c *Core) expire() {
	for t := c.timers.due(c.now); t != nil; t = c.timers.due(c.now) {
		switch it := t.item; {
		case t.model != nil:
			c.touch(t.model)
		case t.worker != nil:
			c.outlast(t.worker)
		case t.sequence != nil:
			c.endSequence(t.sequence)
		case it == nil:
			c.graceOver()
		case it.batch != nil:
			c.abort(it, errs.DeadlineCompute)
		default:
			c.touchOf(it)
			reason := errs.DeadlineQueue
			if it.Deadline == 0 || it.Deadline > c.now {
				reason = errs.QueueTimeout
				if it.sequence != nil {
					reason = errs.SequenceTimeout
				}
			}
			c.end(it, Refuse, reason, 0)
		}
	}
}

// free ends those units of a batch that are done, and returns the credits to its instance.
func (c *Core) free(e *Event) {
	done := e.Ended
	in := c.instances[done.Instance]
	if in != nil {
		in.credits += done.Credits
		c.touch(in.model)
	}
	b := c.batches[done.Batch]
	if b == nil || b.Instance != done.Instance || b.freed || len(done.Ends) > 0 && len(done.Ends) != len(b.Items) {
		if len(done.Again) > 0 {
			c.decide(Decision{Kind: UnknownBatch, Batch: done.Batch})
		}
		return
	}
	b.freed, b.Timing = true, done.Timing
	c.vacate(b)
	for i, o := range done.Outcomes {
		if o == infer.Rejected && i < len(b.Items) && b.Items[i] != nil && b.Items[i].sequence != nil {
			c.interrupt(b.Items[i].sequence, errs.SequenceLost) // its state lacks the request
		}
	}
	if in != nil {
		in.model.lastEnd = c.now
		if done.Executions == 1 {
			took := done.Timing.Done.Sub(done.Timing.Start)
			c.shares.correct(b, took)
			in.model.queue.learn(b.Size, took)
			in.learn(b, took)
			in.learnWay(c.now, b, took)
		}
	}
	if len(done.Ends) == 0 {
		c.completeAll(b)
	} else {
		c.decide(Decision{Kind: Free, Batch: b.ID, Instance: b.Instance, batch: b})
	}
	for i, end := range done.Ends {
		switch it := b.Items[i]; {
		case it == nil:
		case end == infer.UnitMore:
			c.goOn(it)
		case end == infer.UnitEnded:
			c.endRunning(b, i, Complete, "")
		case it.Request == nil: // from an earlier scheduler, which alone had the inputs
			c.endRunning(b, i, Fail, errs.SequenceLost)
		default:
			c.iterate(b, i)
		}
	}
	c.endEmpty(b)
}

// completeAll ends all open items of a batch with one decision.
func (c *Core) completeAll(b *Batch) {
	for _, it := range b.Items {
		if it != nil {
			c.forget(it)
			c.leaveSequence(it, Complete, "")
		}
	}
	c.count(Complete, b.open)
	b.open = 0
	c.decide(Decision{Kind: Complete, Batch: b.ID, Instance: b.Instance, batch: b})
}

// done ends a unit whose instance has moved on to other batches.
func (c *Core) done(d *infer.UnitDone) {
	it, b := c.items[keyOf(d.Work.Unit())], c.batches[d.Batch]
	if it == nil || b == nil || it.batch != b || !b.freed || it.Work.Iteration != d.Work.Iteration {
		return
	}
	c.endRunning(b, slices.Index(b.Items, it), Complete, "")
	c.endEmpty(b)
}

// iterate queues the next iteration of item i of a batch, unless nobody waits for it.
func (c *Core) iterate(b *Batch, i int) {
	it := b.Items[i]
	b.Items[i] = nil
	b.open--
	c.decide(Decision{Kind: Again, Unit: it.Unit(), Batch: b.ID, Instance: b.Instance, A: int64(it.Enqueued), item: it, batch: b})
	if it.aborted {
		c.end(it, Refuse, errs.Canceled, 0)
		return
	}
	parent := it.parent
	c.forget(it)
	if parent != nil {
		c.awaitCall(parent, it)
	}
	it.batch = nil
	it.arrived, it.Enqueued = it.Arrived(), c.now
	it.Work.Iteration++
	it.Request.Work.Iteration = it.Work.Iteration
	it.start, it.end = false, false
	it.timer.item = it
	c.queue(it.model, it)
}

// endRunning ends item i of a batch.
func (c *Core) endRunning(b *Batch, i int, kind DecisionKind, reason errs.Reason) {
	it := b.Items[i]
	b.Items[i] = nil
	b.open--
	c.forget(it)
	c.count(kind, 1)
	c.decide(Decision{Kind: kind, Reason: reason, Unit: it.Unit(), Batch: b.ID, Instance: b.Instance, A: int64(i), item: it, batch: b})
	c.leaveSequence(it, kind, reason)
}

// endEmpty ends a batch that has no open items, and retains it for reuse.
func (c *Core) endEmpty(b *Batch) {
	if b.open == 0 {
		c.forgetBatch(b)
		c.arbiter.ended = append(c.arbiter.ended, b)
	}
}

// forgetBatch removes a batch from the core.
func (c *Core) forgetBatch(b *Batch) {
	c.vacate(b)
	c.leaveCalls(b)
	delete(c.batches, b.ID)
	if i := slices.Index(b.worker.batches, b); i >= 0 {
		b.worker.batches = slices.Delete(b.worker.batches, i, i+1)
	}
}

// workOff works off some of the items that are to be ended or checked again. It returns how many.
func (c *Core) workOff(budget int) int {
	n := c.unpark(budget)
	for len(c.sweeps) > 0 && n < budget {
		s := c.sweeps[0]
		switch {
		case s.gateway != nil && s.gateway.head != nil:
			it := s.gateway.head
			c.touchOf(it)
			c.end(it, HandOff, s.reason, 0)
		case s.sequence != nil && s.sequence.waiting.head != nil:
			c.end(s.sequence.waiting.head, Refuse, s.reason, 0)
		case s.model != nil && len(s.model.instances) == 0 && c.now >= c.grace && s.model.queue.requests > 0:
			c.end(s.model.queue.first(c.now), Refuse, errs.NoWorker, 0)
		default:
			if s.model != nil {
				c.forgetModel(s.model)
			}
			c.sweeps = slices.Delete(c.sweeps, 0, 1)
			continue
		}
		n++
	}
	return n
}

// disconnect hands off the waiting requests of a gateway. A gateway that is alive submits them again: those that have
// not been swept yet then stay.
func (c *Core) disconnect(origin uint64) {
	if g := c.gateways[origin]; g != nil {
		delete(c.gateways, origin)
		g.gone = true
		c.sweeps = append(c.sweeps, sweep{gateway: g, reason: errs.PeerUnreachable})
	}
}
