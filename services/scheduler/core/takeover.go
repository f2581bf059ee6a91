package core

import (
	"slices"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// adopt takes over a batch of an earlier scheduler, so that its completion is counted, and its units fail if their
// worker is lost. A unit that runs elsewhere leaves its place in the batch empty. If the batch is known, adopt hands
// off the units that the worker has ended: their completion was lost.
func (c *Core) adopt(w *worker, r *infer.Running) {
	id := r.Batch
	if b := c.batches[id]; b != nil {
		if r.InstanceFree {
			b.freed = true
			c.handOff(b, func(it *Item) bool {
				return !slices.ContainsFunc(r.Units, func(u infer.Work) bool { return keyOf(u.Unit()) == keyOf(it.Unit()) })
			})
			c.endEmpty(b)
		}
		return
	}
	b := &Batch{
		Adopted: true, worker: w, Dispatched: c.now,
		Batch: infer.Batch{ID: r.Batch, Instance: r.Instance}, Items: make([]*Item, len(r.Units)), freed: r.InstanceFree,
	}
	for i, work := range r.Units {
		c.started.Add(work.Request)
		it := &Item{Work: work, BatchSize: r.BatchSizeOf(i), Enqueued: c.now, batch: b}
		if waits := c.items[keyOf(it.Unit())]; waits != nil && waits.batch == nil {
			it.Work.Attempt = waits.Work.Attempt // its gateway ignores all others
			waits.runsOn = b.on()
			c.touchOf(waits)
			c.end(waits, HandOff, errs.RequestUnderway, 0)
		} else if waits != nil {
			continue
		}
		it.timer.item = it
		c.items[keyOf(it.Unit())] = it
		c.counts.Submitted++
		b.Items[i] = it
		b.Size += it.BatchSize
		b.open++
	}
	c.batches[id] = b
	w.batches = append(w.batches, b)
}

// on returns the instance that a batch was sent to, as identified by the worker that has it.
func (b *Batch) on() infer.InstanceID {
	return infer.InstanceID{Worker: b.worker.id, Slot: b.Instance.Slot}
}

// reconcile ends a batch that its connected worker does not run. Either the batch has finished and its completion was
// lost, or the batch itself was lost, except for units that were answered because their inputs could not be read.
//
// A unit that is to run another iteration there has not ended. Either this batch ran the last iteration, and the
// report of that was lost; or this batch would have run the next one, and was lost.
func (c *Core) reconcile(b *Batch, started *infer.Recent, held []infer.HeldSequence) {
	for i, it := range b.Items {
		switch iteration, again := runsAgain(held, it); {
		case !again:
		case it.Request == nil:
			c.endRunning(b, i, Fail, errs.SequenceLost)
		case iteration == it.Work.Iteration:
			c.iterate(b, i)
		}
	}
	c.handOff(b, func(it *Item) bool {
		_, again := runsAgain(held, it)
		return !again && started.Lookup(it.Work.Request) != infer.Absent
	})
	c.loseOrRequeue(b, b.Returned)
}

// runsAgain reports whether a worker has an item between two iterations, and which iteration was the last.
func runsAgain(held []infer.HeldSequence, it *Item) (iteration uint32, again bool) {
	for i := range held {
		if u := held[i].Request.Unit(); it != nil && u.Request != (infer.RequestID{}) && keyOf(u) == keyOf(it.Unit()) {
			return u.Iteration, true
		}
	}
	return 0, false
}

// sever records the requests that a worker has between two iterations and that are not known here.
func (c *Core) sever(held []infer.HeldSequence) {
	for i := range held {
		u := held[i].Request.Unit()
		if it := c.items[keyOf(u)]; u.Request != (infer.RequestID{}) && (it == nil || it.parked) {
			c.severed.Add(u.Request)
		}
	}
}

// handOff ends those items of a batch that others finish.
func (c *Core) handOff(b *Batch, finished func(*Item) bool) {
	for i, it := range b.Items {
		if it != nil && finished(it) {
			c.endRunning(b, i, HandOff, "")
		}
	}
}

// loseBatch ends a batch that ran on a lost worker, or requeues it where that is allowed and possible. The batch is
// not reused: the worker may still read it.
func (c *Core) loseBatch(b *Batch) {
	may := func(it *Item) bool { return it != nil && it.model != nil && it.model.repeats }
	c.loseOrRequeue(b, b.Returned && slices.ContainsFunc(b.Items, may))
}

// loseOrRequeue fails the remaining items of a batch, or requeues them if the batch has had no responses yet.
func (c *Core) loseOrRequeue(b *Batch, requeue bool) {
	c.forgetBatch(b)
	switch {
	case b.open == 0:
	case requeue && !b.freed:
		c.decide(Decision{Kind: Requeue, Batch: b.ID, Instance: b.Instance, batch: b})
		for _, it := range b.Items {
			if it != nil {
				c.waitAgain(it)
			}
		}
	default:
		for i, it := range b.Items {
			if it != nil {
				reason := errs.InstanceCrashed
				if it.sequence != nil {
					reason = errs.SequenceLost
				}
				c.endRunning(b, i, Fail, reason)
			}
		}
	}
}

// waitAgain requeues an item that was dispatched and not started, or that may run twice, unless nobody waits for it.
// Its model may have been removed in the meantime and added again.
func (c *Core) waitAgain(it *Item) {
	c.started.Remove(it.Work.Request)
	c.shares.refund(it)
	it.batch, it.model = nil, c.models[it.Model]
	switch {
	case it.model == nil || it.sequence != nil && it.sequence.model != it.model:
		c.end(it, Refuse, errs.ModelNotReady, 0)
	case !it.doneBy(c.now):
		c.end(it, Refuse, errs.DeadlineQueue, 0)
	case it.aborted:
		c.end(it, Refuse, errs.Canceled, 0)
	default:
		c.queue(it.model, it)
		c.abandon(it.model)
	}
}

// takeBack requeues the units of a batch that its worker has not started. The event does not name those that the
// worker has answered.
//
// The batch's credit is returned only if the instance is away, its credits withdrawn. Otherwise the instance is gone;
// or the worker is unreachable, and grants its instances again when it connects; or the worker says that the instance
// already has all the batches that it may have. In that last case the credit was one too many, and returning it would
// send another batch back and forth for as long as those run.
func (c *Core) takeBack(o *infer.Batch, reason errs.Reason) {
	b := c.batches[o.ID]
	if b == nil {
		c.decide(Decision{Kind: UnknownBatch, Batch: o.ID})
		return
	}
	switch in := b.instance; {
	case in == nil:
	case reason == errs.NoWorker:
		c.vacate(b) // before the instance is forgotten
		c.dropInstance(in, false)
	case reason == errs.InstanceAway:
		in.credits++
	case reason == errs.PeerUnreachable:
		for _, in := range b.worker.instances {
			in.credits = 0 // otherwise everything that waits would go there and come back
		}
	default:
		in.pipelined = max(in.pipelined-1, 0) // the remaining credits are for batches that run first
	}
	c.handOff(b, func(it *Item) bool {
		return !slices.ContainsFunc(o.Requests, func(r *infer.Request) bool { return r.Work.Request == it.Work.Request })
	})
	for _, it := range b.Items {
		for _, r := range o.Requests {
			if it != nil && it.Request == nil && r.Work.Request == it.Work.Request { // it was adopted
				it.Request, it.Model = r, r.Model
			}
		}
	}
	b.Returned = true
	c.loseOrRequeue(b, true)
}
