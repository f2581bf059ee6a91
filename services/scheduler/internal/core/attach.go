package core

import (
	"slices"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
)

// attach takes in what a worker has begun, in this term or before, and holds
// what is thought to run there against it.
func (c *Core) attach(now mono.Time, worker uint64, held *infer.Held) {
	c.part(now, &Event{Instance: infer.InstanceID{Worker: worker}})
	c.attached[worker] = true
	var begun infer.Recent
	for _, b := range held.Begun {
		begun.Merge(b)
		c.begun.Merge(b)
	}
	runs := make(map[orderKey]bool, len(held.Running))
	for i := range held.Running {
		r := &held.Running[i]
		runs[orderKey{r.Epoch, r.Order}] = true
		c.adopt(now, r)
	}
	for _, b := range c.batchesOf(worker) {
		if !runs[keyOf(&b.Order)] {
			c.settle(now, b, &begun)
		}
	}
	c.hear(now, worker)
}

// adopt takes over an order of an earlier scheduler, so that its completion is
// counted, and its requests fail if their worker is lost.
func (c *Core) adopt(now mono.Time, r *infer.Running) {
	key := orderKey{r.Epoch, r.Order}
	if c.orders[key] != nil {
		return
	}
	b := &Batch{Adopted: true, Order: infer.Order{ID: r.Order, Epoch: r.Epoch, Instance: r.Instance}, Dispatched: now}
	for i, work := range r.Requests {
		c.begun.Add(work.Request)
		if it := c.items[work.Request]; it != nil && it.batch == nil {
			work.Attempt = it.Work.Attempt // the only one that its gateway heeds
			c.endDouble(now, it)
		} else if it != nil {
			continue
		}
		it := &Item{Work: work, Rows: r.RowsOf(i), Enqueued: now, batch: b}
		c.counts.Admitted++
		c.items[work.Request] = it
		b.Items = append(b.Items, it)
	}
	c.orders[key] = b
}

// endDouble ends an item that waits although it runs already.
func (c *Core) endDouble(now mono.Time, it *Item) {
	c.counts.Passed++
	if it.held {
		c.endHeld(it, errs.RequestUnderway)
		return
	}
	c.giveUp(it, errs.RequestUnderway)
	c.schedule(now, it.model)
}

// settle ends a batch that its worker, which is there, does not run: either it
// has finished, and the completion was lost, or the order was, but for requests
// that were answered without their inputs.
func (c *Core) settle(now mono.Time, b *Batch, begun *infer.Recent) {
	absent := func(it *Item) bool { return begun.Look(it.Work.Request) == infer.Absent }
	if !slices.ContainsFunc(b.Items, absent) {
		c.pass(b)
		return
	}
	c.passSome(b, func(it *Item) bool { return !absent(it) })
	if b.Kept {
		c.requeue(now, b)
	} else {
		c.lose(now, b)
	}
}

// pass ends a batch that others finish.
func (c *Core) pass(b *Batch) {
	c.leave(0, b)
	for _, it := range b.Items {
		c.forget(it)
	}
	c.counts.Passed += uint64(len(b.Items))
	c.act(Action{Kind: Passed, Batch: b})
}

// passSome ends those items of a batch that others finish.
func (c *Core) passSome(b *Batch, finished func(*Item) bool) {
	over := &Batch{Order: infer.Order{ID: b.Order.ID, Epoch: b.Order.Epoch, Instance: b.Order.Instance}, Model: b.Model, Kept: b.Kept, Adopted: b.Adopted}
	b.Items = slices.DeleteFunc(b.Items, func(it *Item) bool {
		if !finished(it) {
			return false
		}
		c.forget(it)
		b.Rows -= it.Rows
		over.Items = append(over.Items, it)
		return true
	})
	if len(over.Items) > 0 {
		c.counts.Passed += uint64(len(over.Items))
		c.act(Action{Kind: Passed, Batch: over})
	}
}

// part forgets a worker's instances, not what runs there. What waited for them
// may go to others, if only to those that retire.
func (c *Core) part(now mono.Time, e *Event) {
	worker := e.Instance.Worker
	delete(c.attached, worker)
	for _, o := range e.Orders {
		if b := c.orders[keyOf(o)]; b != nil {
			b.Kept = true
		} else {
			c.act(Action{Kind: Disowned, Order: o})
		}
	}
	if e.Until != 0 {
		c.expect(e.Until)
	}
	for _, in := range c.instancesOf(worker) {
		c.dropInstance(now, in)
	}
	for _, b := range c.batchesOf(worker) {
		b.instance = nil
	}
	c.scheduleAll(now)
}

// reunite gives an instance, which is new to the core, what is known to run on
// it.
func (c *Core) reunite(in *instance) {
	for _, b := range c.orders {
		if b.Order.Instance == in.id {
			b.instance, b.Model = in, in.model.ref
			in.running++
			in.work += b.takes
		}
	}
}

// takeBack queues the requests of an order again that its worker has not begun.
// The order does not name those that it has answered.
//
// Its credit is not given back, whatever the reason. Either the instance is
// gone; or the worker is out of reach, and grants its instances anew when it
// attaches; or the worker holds that the instance has all the orders that it may
// have: then the credit was one too many, and an order for each would be
// refused for as long as those run.
func (c *Core) takeBack(now mono.Time, o *infer.Order, reason errs.Reason) {
	b := c.orders[keyOf(o)]
	if b == nil {
		c.act(Action{Kind: Disowned, Order: o})
		return
	}
	switch in := b.instance; {
	case in == nil:
	case reason == errs.NoWorker:
		in.running-- // before it is forgotten
		b.instance = nil
		c.dropInstance(now, in)
	case reason == errs.PeerUnreachable:
		for _, in := range c.instancesOf(in.id.Worker) {
			in.credits = 0 // or all that waits would be ordered there and come back
		}
	default:
		in.ahead = max(in.ahead-1, 0) // what is left is first of all for orders that run
	}
	c.passSome(b, func(it *Item) bool {
		return !slices.ContainsFunc(o.Requests, func(r *infer.Request) bool { return r.Work.Request == it.Work.Request })
	})
	b.Kept = true
	c.requeue(now, b)
}

// requeue puts the items of a batch, whose requests are the core's, behind those
// that wait.
func (c *Core) requeue(now mono.Time, b *Batch) {
	c.leave(now, b)
	c.act(Action{Kind: Requeued, Batch: b})
	for _, it := range b.Items {
		c.wait(now, it)
	}
	c.scheduleAll(now)
	for _, m := range c.modelsInOrder() {
		if len(m.instances) == 0 {
			c.abandon(now, m)
		}
	}
}

// wait has an item wait again that was dispatched and not begun, or may run
// twice, unless nobody would wait for it. Its model may have been removed
// meanwhile, and made known again.
func (c *Core) wait(now mono.Time, it *Item) {
	c.begun.Remove(it.Work.Request)
	it.batch, it.timeout, it.lateAt = nil, 0, 0
	if it.model = c.models[it.Model]; it.model == nil {
		c.counts.Expired++
		c.forget(it)
		c.act(Action{Kind: Finish, Item: it, Reason: errs.ModelNotReady})
		return
	}
	c.waiting.add(it, 1)
	it.model.waiting.add(it, 1)
	switch {
	case !it.doneBy(now):
		c.counts.Expired++
		c.finish(it, errs.DeadlineQueue)
	case it.aborted:
		c.counts.Cancelled++
		c.finish(it, errs.Cancelled)
	default:
		c.queue(it.model, it)
	}
}
