package core

import (
	"cmp"
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
)

// instance is one executable copy of a model, as far as batches go.
type instance struct {
	id        infer.InstanceID
	model     *model
	worker    *worker
	credits   int // for batches that run, and for pipelined ones
	pipelined int // how many of its batches may be pipelined
	granted   int // credits that the worker has given and not withdrawn
	running   int // batches, pipelined ones included
	pace      *pace
	costs     *costs // those of the pace
	// busyUntil is when its batches will be done by their estimated costs, which
	// are work together.
	busyUntil mono.Time
	work      time.Duration
	retiring  bool
	started   bool // has run a batch
	// way is what a batch takes beside its execution, in seconds: to reach the
	// instance when it is free, and to be heard of when it has ended.
	way      float64
	ended    mono.Time // the last batch, as heard of
	name     string
	number   int // of the device
	turns    turns
	slots    []*sequence // where the model batches sequences
	freeSlot int         // the lowest that may be free
}

// A pipelined batch is one that an instance has beside those that it runs, so
// that it goes on without the way to the scheduler and back. It is a decision
// made early: it stays with its instance though another may be free before, and
// shares its fate. So it is made only where waiting would change nothing but the
// time.
const (
	// brief is the longest that a pipelined batch may take and wait for its turn,
	// by the estimates. Longer ones gain nothing: the way is short against them.
	brief = time.Millisecond
	// overdue is for how long an instance may not have answered when it should
	// have, by the estimates, and get a pipelined batch. The way of the batch and
	// of its completion is in it.
	overdue = 10 * time.Millisecond
)

// away reports whether the worker has withdrawn the instance's credits, such as while
// its process is started again.
func (in *instance) away() bool { return in.granted <= 0 }

// free reports whether the instance can run another batch at once.
func (in *instance) free() bool { return in.credits > in.pipelined && in.worker.recorded }

// pipelines reports whether an instance that is not free takes a batch and is
// about to be free. Under a rate limiter none does.
func (in *instance) pipelines(now mono.Time) bool {
	wait := in.busyUntil.Sub(now)
	return in.credits > 0 && in.turns.priority == 0 && in.worker.recorded && !in.retiring && wait <= brief && wait >= -overdue
}

// freeAt is when the instance will be free by the estimates.
func (in *instance) freeAt(now mono.Time) mono.Time { return max(in.busyUntil, now) }

// mayPipeline reports whether an item of a batch that takes so long has nothing
// to expect of waiting: no later one could go before it, no policy puts it
// behind or gives it up, and it will be done in time. A call could come behind
// the batch that waits for it.
func (it *Item) mayPipeline(now mono.Time, in *instance, takes time.Duration) bool {
	return it.parent == nil && takes > 0 && takes <= brief && it.level == 0 && it.timeout == 0 && it.behindAt == 0 && it.doneBy(in.freeAt(now).Add(takes))
}

// before reports whether a batch goes to in rather than to other.
func (in *instance) before(other *instance) bool {
	if in.costs == other.costs {
		return in.running < other.running
	}
	a, b := in.costs.estimate(1, shape{}), other.costs.estimate(1, shape{})
	return a < b || (a == b && in.running < other.running)
}

// fits reports whether a batch of so many bytes may take so many more. What is
// larger than all that the worker's batches may have goes alone, or it never would.
func (in *instance) fits(bytes, more int64) bool {
	w := in.worker
	return w.memory == 0 || w.used+bytes+more <= w.memory || w.used+bytes == 0
}

// learn takes in what an execution took, except the instance's first: that one
// includes what is done once, such as the allocation of memory, and says
// little about those to come.
func (in *instance) learn(b *Batch, took time.Duration) {
	if in.started {
		in.pace.measure(in.model.lastEnd, b.Size, b.shape, took)
		in.costs.learn(b.Size, b.shape, took)
		if in.pace.n > 0 && in.pace.n%measured == 0 {
			in.model.compare(in.pace, in.model.lastEnd)
		}
	}
	in.started = true
}

// learnWay takes in when an executed batch was heard of. The way of a pipelined
// batch is short, since it waits at its instance for the one before. It is an
// exponentially weighted mean, in which one that is much longer than usual, such as
// for a moment in which the machine stood still, counts as little more. What batches
// that run beside each other take cannot be told apart, and counts as execution.
func (in *instance) learnWay(now mono.Time, b *Batch, took time.Duration) {
	way := max(now.Sub(max(b.Dispatched, in.ended))-took, 0).Seconds()
	in.way += slowest * (min(way, 2*in.way+shortest) - in.way)
	in.ended = now
}

// shortest is a way that is usual even where ways have been shorter, in seconds.
const shortest = 100e-6

// takes is how long after the dispatch a batch of that size will hardly be heard
// of, if the instance is free; 0 if nothing of its shape has run.
func (in *instance) takes(size int64, s shape) time.Duration {
	takes := in.costs.estimate(size, s)
	if takes > 0 {
		takes += seconds(in.way)
	}
	return takes
}

// grant offers credits of an instance of a connected worker.
func (c *Core) grant(g *infer.Grant) {
	w := c.workers[g.Instance.Worker]
	if w == nil || !w.connected {
		return
	}
	in := c.instances[g.Instance]
	if in == nil {
		m := c.model(g.Model)
		p := m.paceOn(w, g.Device)
		in = &instance{id: g.Instance, model: m, worker: w, pace: p, costs: p.costs(), name: g.Name, number: deviceNumber(g.Device)}
		in.warm(g.Warmed)
		c.instances[g.Instance] = in
		m.instances, m.awaited = insert(m.instances, in), true
		w.instances = insert(w.instances, in)
		for _, b := range w.batches { // what is known to run on it
			if b.Instance == in.id && !b.freed {
				b.instance, b.Model = in, m.ref
				in.running++
				in.work += b.takes
				w.used += b.bytes
			}
		}
		c.limiter.enlist(in)
		in.credits, in.granted, in.pipelined = g.Credits, g.Credits+in.running, g.Pipelined
		if m.sequences != nil {
			c.openSlots(in)
		}
		c.touch(m)
		return
	}
	in.credits += g.Credits
	in.granted += g.Credits
	in.pipelined = g.Pipelined
	if in.model.sequences != nil {
		c.assignSlots(in.model) // those of an instance that was away
	}
	c.touch(in.model)
}

// insert keeps instances in the order of their ids.
func insert(list []*instance, in *instance) []*instance {
	at, _ := slices.BinarySearchFunc(list, in, func(a, b *instance) int {
		return cmp.Or(cmp.Compare(a.id.Worker, b.id.Worker), cmp.Compare(a.id.Slot, b.id.Slot))
	})
	return slices.Insert(list, at, in)
}

// reportMemory takes in how many bytes the batches of a worker may have together.
func (c *Core) reportMemory(id uint64, bytes int64) {
	if w := c.workers[id]; w != nil {
		w.memory = max(bytes, 0)
		c.touchShort(w)
	}
}

// touchShort asks the models again that wait for memory of a worker.
func (c *Core) touchShort(w *worker) {
	for _, in := range w.instances {
		if in.model.proposal.Reason == errs.MemoryPressure {
			c.touch(in.model)
		}
	}
}

func (c *Core) retire(id infer.InstanceID) {
	in := c.instances[id]
	if in == nil {
		// A worker may ask about an instance that was lost: it has none.
		c.decide(Decision{Kind: InstanceRetired, Instance: id})
		return
	}
	if !in.retiring {
		in.retiring = true
		in.model.retiring++
		c.doubt(in.model)
	}
	c.touch(in.model)
}

// releaseRetiring lets go the retiring instances that run nothing, unless they
// are the last that can take what still waits. One that is away can take nothing.
func (c *Core) releaseRetiring(m *model) {
	if m.retiring == 0 {
		return
	}
	last := m.retiring == len(m.instances) && m.queue.requests > 0 && m.batcher != nil
	for _, in := range slices.Clone(m.instances) {
		if in.retiring && in.running == 0 && (in.away() || !last && !in.occupied()) {
			c.decide(Decision{Kind: InstanceRetired, Instance: in.id})
			c.dropInstance(in, false)
		}
	}
}

// dropInstance forgets an instance, which may come back if its worker is away.
func (c *Core) dropInstance(in *instance, away bool) {
	m, same := in.model, func(other *instance) bool { return other == in }
	delete(c.instances, in.id)
	c.delist(in)
	if in.retiring {
		m.retiring--
	}
	m.instances = slices.DeleteFunc(m.instances, same)
	in.worker.instances = slices.DeleteFunc(in.worker.instances, same)
	for _, b := range in.worker.batches {
		if b.instance == in {
			in.worker.used -= b.bytes
			b.instance = nil
		}
	}
	c.closeSlots(in, away)
	c.doubt(m)
	c.touch(m)
	c.abandon(m)
}

// abandon ends what waits for a model that has no instance, unless one is
// expected.
func (c *Core) abandon(m *model) {
	if len(m.instances) == 0 && c.now >= c.grace {
		c.sweeps = append(c.sweeps, sweep{model: m})
	}
}
