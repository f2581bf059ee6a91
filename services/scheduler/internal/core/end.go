package core

import (
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
)

// cancel ends an item for which nobody waits any more, or passes that on.
func (c *Core) cancel(now mono.Time, id infer.RequestID) {
	it := c.items[id]
	switch {
	case it == nil:
	case it.held:
		c.counts.Cancelled++
		c.endHeld(it, errs.Cancelled)
	case it.batch != nil:
		c.abort(it, errs.Cancelled)
	default:
		c.counts.Cancelled++
		c.giveUp(it, errs.Cancelled)
		c.schedule(now, it.model)
	}
}

// expire ends what has waited too long, asks running work to stop whose
// clients do not wait any more, and then looks again at the models concerned
// and at those whose batches have waited for company. In this order, or a
// late tick would dispatch what has expired.
func (c *Core) expire(now mono.Time) {
	for t := c.timers.due(now); t != nil; t = c.timers.due(now) {
		it := t.item
		switch {
		case it == nil && t.mod == nil:
			c.lookAgain(now)
		case it == nil:
			c.again = append(c.again, t.mod)
		case it.held:
			c.counts.Expired++
			c.endHeld(it, errs.DeadlineQueue)
		case it.batch == nil:
			c.counts.Expired++
			c.giveUp(it, expiry(it, now))
			c.again = append(c.again, it.model)
		default:
			c.abort(it, errs.DeadlineCompute)
		}
	}
	for i, m := range c.again {
		c.schedule(now, m)
		c.again[i] = nil
	}
	c.again = c.again[:0]
}

func expiry(it *Item, now mono.Time) errs.Reason {
	if it.Deadline != 0 && it.Deadline <= now {
		return errs.DeadlineQueue
	}
	return errs.QueueTimeout
}

// giveUp ends a waiting item.
func (c *Core) giveUp(it *Item, reason errs.Reason) {
	it.model.policy.Remove(it)
	c.finish(it, reason)
}

// finish ends an admitted item that its policy has let go and that has not
// run.
func (c *Core) finish(it *Item, reason errs.Reason) {
	c.leaveQueue(it)
	c.forget(it)
	c.act(Action{Kind: Finish, Item: it, Reason: reason})
}

func (c *Core) leaveQueue(it *Item) {
	c.waiting.add(it, -1)
	it.model.waiting.add(it, -1)
}

// forget ends the core's knowledge of an item, which an action hands back.
func (c *Core) forget(it *Item) {
	c.timers.set(&it.timer, 0)
	delete(c.items, it.Work.Request)
}

// abort passes on, once, that nobody waits for a running item.
func (c *Core) abort(it *Item, reason errs.Reason) {
	if it.aborted {
		return
	}
	it.aborted = true
	c.timers.set(&it.timer, 0)
	c.act(Action{Kind: Abort, Item: it, Batch: it.batch, Reason: reason})
}
