package core

import (
	"cmp"
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
)

// instance is one executable copy, as far as orders go.
type instance struct {
	id      infer.InstanceID
	model   *model
	credits int // for orders that run, and for those ahead
	ahead   int // how many of its orders may be ahead of its being free
	running int // orders, with those ahead
	// costs are those of its model on its kind of device.
	costs *costs
	// busyUntil is when its orders will be done by their estimated costs, which
	// are work together.
	busyUntil mono.Time
	work      time.Duration
	retiring  bool
	begun     bool // has run an order
}

// learn takes in what an execution took, except the instance's first: that one
// includes what is done once, such as the allocation of memory, and says
// little about those to come.
func (in *instance) learn(rows int64, took time.Duration) {
	if in.begun {
		in.costs.learn(rows, took)
	}
	in.begun = true
}

func (c *Core) grant(now mono.Time, g *infer.Grant) {
	in := c.instances[g.Instance]
	if in == nil {
		m := c.model(g.Model)
		in = &instance{id: g.Instance, model: m, costs: m.costsOn(g.Device)}
		c.instances[g.Instance] = in
		at, _ := slices.BinarySearchFunc(m.instances, in, byID)
		m.instances, m.met = slices.Insert(m.instances, at, in), true
		c.reunite(in)
	}
	in.credits += g.Credits
	in.ahead = g.Ahead
	c.schedule(now, in.model)
}

func byID(a, b *instance) int {
	return cmp.Or(cmp.Compare(a.id.Worker, b.id.Worker), cmp.Compare(a.id.Slot, b.id.Slot))
}

func (c *Core) retire(now mono.Time, id infer.InstanceID) {
	in := c.instances[id]
	if in == nil {
		// A worker may ask about an instance that was lost: it has none.
		c.act(Action{Kind: Retired, Instance: id})
		return
	}
	if !in.retiring {
		in.retiring = true
		in.model.retiring++
	}
	c.schedule(now, in.model)
}

// release lets go the retiring instances that run nothing, unless they are
// the last that can take what still waits.
func (c *Core) release(now mono.Time, m *model) {
	if m.retiring == 0 || (m.retiring == len(m.instances) && m.policy.Len() > 0 && !m.unconfigured()) {
		return
	}
	for _, in := range slices.Clone(m.instances) {
		if in.retiring && in.running == 0 {
			c.act(Action{Kind: Retired, Instance: in.id})
			c.dropInstance(now, in)
		}
	}
}

// dropInstance forgets an instance.
func (c *Core) dropInstance(now mono.Time, in *instance) {
	m := in.model
	delete(c.instances, in.id)
	if in.retiring {
		m.retiring--
	}
	m.instances = slices.DeleteFunc(m.instances, func(other *instance) bool { return other == in })
	if len(m.instances) == 0 {
		c.abandon(now, m)
	}
}

// abandon ends what waits for a model that has no instance any more, unless one
// is expected.
func (c *Core) abandon(now mono.Time, m *model) {
	if now < c.patience {
		return
	}
	c.refuseWaiting(m)
	c.forgetModel(m)
}

// refuseWaiting ends what waits for a model that has no instance any more.
func (c *Core) refuseWaiting(m *model) {
	for _, it := range c.itemsOf(m) {
		c.counts.Expired++
		c.giveUp(it, errs.NoWorker)
	}
}
