package core

import (
	"cmp"
	"maps"
	"slices"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/mono"
)

// detach loses a worker's instances with all that runs there. What waits goes
// on waiting for another worker's instances, if the model has any.
func (c *Core) detach(now mono.Time, worker uint64) {
	delete(c.attached, worker)
	for _, in := range c.instancesOf(worker) {
		in.credits = 0 // nothing goes there in between
	}
	for _, b := range c.batchesOf(worker) {
		c.lose(now, b)
	}
	for _, in := range c.instancesOf(worker) {
		c.dropInstance(now, in)
	}
	c.blind = c.blind || c.unheard[worker]
	c.hear(now, worker)
	c.scheduleAll(now)
}

func (c *Core) scheduleAll(now mono.Time) {
	for _, m := range c.modelsInOrder() {
		c.schedule(now, m)
	}
}

// lose ends a batch that ran on a lost worker, or has it run again where that
// is allowed and possible. The batch is not used again: the worker may still
// read its order.
func (c *Core) lose(now mono.Time, b *Batch) {
	if b.Kept && b.Items[0].model.repeats {
		c.requeue(now, b)
		return
	}
	c.leave(now, b)
	for _, it := range b.Items {
		c.forget(it)
		c.counts.Lost++
		c.act(Action{Kind: Lost, Item: it, Batch: b, Reason: errs.InstanceCrashed})
	}
}

// The lists below are sorted, so that equal histories give equal actions.

func (c *Core) batchesOf(worker uint64) []*Batch {
	return slices.DeleteFunc(c.batches(), func(b *Batch) bool { return b.Order.Instance.Worker != worker })
}

func (c *Core) batches() []*Batch {
	list := slices.Collect(maps.Values(c.orders))
	slices.SortFunc(list, func(a, b *Batch) int {
		return cmp.Or(cmp.Compare(a.Order.Epoch, b.Order.Epoch), cmp.Compare(a.Order.ID, b.Order.ID))
	})
	return list
}

func (c *Core) instancesOf(worker uint64) []*instance {
	var list []*instance
	for id, in := range c.instances {
		if id.Worker == worker {
			list = append(list, in)
		}
	}
	slices.SortFunc(list, byID)
	return list
}

func (c *Core) modelsInOrder() []*model {
	list := make([]*model, 0, len(c.models))
	for _, m := range c.models {
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b *model) int { return a.ref.Compare(b.ref) })
	return list
}

func (c *Core) itemsOf(m *model) []*Item {
	var list []*Item
	for _, it := range c.items {
		if it.model == m && it.batch == nil {
			list = append(list, it)
		}
	}
	slices.SortFunc(list, func(a, b *Item) int {
		return cmp.Or(cmp.Compare(a.Enqueued, b.Enqueued), cmp.Compare(a.Work.Request.Number, b.Work.Request.Number))
	})
	return list
}
