package core

import (
	"cmp"
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
)

// instance is one executable copy of a model, as far as batching is concerned.
type instance struct {
	id        infer.InstanceID
	model     *model
	worker    *worker
	credits   int // for batches that run, and for pipelined ones
	pipelined int // how many of its batches may be pipelined
	granted   int // that the worker has granted and not withdrawn
	running   int // batches, pipelined ones included
	pace      *pace
	costs     *costs // those of the pace
	// busyUntil is when its batches will be done, by their estimated costs; work is the sum of those costs.
	busyUntil mono.Time
	work      time.Duration
	retiring  bool
	started   bool // has run a batch
	// way is the overhead of a batch beside its execution, in seconds: until it reaches an instance that is free, and
	// until the scheduler learns that it has ended.
	way      float64
	ended    mono.Time // when the scheduler learned that the last batch had ended
	name     string
	number   int // of the device
	turns    turns
	slots    []*sequence // if the model batches sequences
	freeSlot int         // the lowest that may be free
}

// A pipelined batch is sent to an instance while it still runs others, so that the instance continues without a round
// trip to the scheduler. It is an early decision: the batch stays with its instance even if another becomes free
// first, and shares its fate. The core therefore pipelines only where waiting would change nothing but the time.
const (
	// brief is the longest that a pipelined batch may take, and may wait for its turn, by the estimates. Longer
	// batches gain nothing: the round trip is short compared with them.
	brief = time.Millisecond
	// overdue is how late an instance's answer may be, by the estimates, for the instance to receive a pipelined
	// batch. It includes the transfer of the batch and of its completion.
	overdue = 10 * time.Millisecond
)

// away reports whether the worker has withdrawn the instance's credits, for example while it restarts the instance's
// process.
func (in *instance) away() bool { return in.granted <= 0 }

// free reports whether the instance can run another batch immediately.
func (in *instance) free() bool { return in.credits > in.pipelined && in.worker.recorded }

// pipelines reports whether an instance that is not free accepts a batch and is about to be free. Under a rate
// limiter none does.
func (in *instance) pipelines(now mono.Time) bool {
	wait := in.busyUntil.Sub(now)
	return in.credits > 0 && in.turns.priority == 0 && in.worker.recorded && !in.retiring && wait <= brief && wait >= -overdue
}

// freeAt returns when the instance will be free, by the estimates.
func (in *instance) freeAt(now mono.Time) mono.Time { return max(in.busyUntil, now) }

// mayPipeline reports whether an item of a batch that takes the given time gains nothing by waiting: no later item
// could go before it, no policy moves it behind or rejects it, and it will be done in time. A call is not pipelined:
// it could end up behind the batch that waits for it.
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

// fits reports whether a batch of the given bytes may grow by more bytes. A batch larger than the limit for all of
// the worker's batches runs alone; otherwise it could never run.
func (in *instance) fits(bytes, more int64) bool {
	w := in.worker
	return w.memory == 0 || w.used+bytes+more <= w.memory || w.used+bytes == 0
}

// learn records how long an execution took, except the instance's first: that one includes one-time work, such as
// allocating memory, and says little about later ones.
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

// learnWay updates the overhead when the scheduler learns that a batch was executed. The overhead of a pipelined
// batch is small, since the batch waits at its instance for the previous one. It is an exponentially weighted mean in
// which a value much longer than usual, such as when the machine stalls, counts as little more than usual. The
// overhead of batches that run concurrently cannot be told apart, and counts as execution.
func (in *instance) learnWay(now mono.Time, b *Batch, took time.Duration) {
	way := max(now.Sub(max(b.Dispatched, in.ended))-took, 0).Seconds()
	in.way += slowest * (min(way, 2*in.way+shortest) - in.way)
	in.ended = now
}

// shortest is an overhead that counts as usual even where all others were shorter, in seconds.
const shortest = 100e-6

// takes returns the time from dispatch within which the scheduler almost certainly learns that a batch of that size
// has ended, if the instance is free; 0 if nothing of its shape has run.
func (in *instance) takes(size int64, s shape) time.Duration {
	takes := in.costs.estimate(size, s)
	if takes > 0 {
		takes += seconds(in.way)
	}
	return takes
}

// grant adds credits of an instance of a connected worker.
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
		for _, b := range w.batches { // that are known to run on it
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
		c.assignSlots(in.model) // those of an instance that was unavailable
	}
	c.touch(in.model)
}

// insert inserts an instance in the order of ids.
func insert(list []*instance, in *instance) []*instance {
	at, _ := slices.BinarySearchFunc(list, in, func(a, b *instance) int {
		return cmp.Or(cmp.Compare(a.id.Worker, b.id.Worker), cmp.Compare(a.id.Slot, b.id.Slot))
	})
	return slices.Insert(list, at, in)
}

// reportMemory records how many bytes the batches of a worker may use in total.
func (c *Core) reportMemory(id uint64, bytes int64) {
	if w := c.workers[id]; w != nil {
		w.memory = max(bytes, 0)
		c.touchShort(w)
	}
}

// touchShort schedules the models that wait for memory of a worker to be asked again.
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
		// A worker may ask about an instance that was lost: it runs nothing.
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

// releaseRetiring releases the retiring instances that run nothing, unless they are the last that can run what still
// waits. An unavailable instance can run nothing.
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

// dropInstance forgets an instance. With away, its worker is unreachable and the instance may come back.
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

// abandon ends the waiting requests of a model that has no instance, unless one is expected.
func (c *Core) abandon(m *model) {
	if len(m.instances) == 0 && c.now >= c.grace {
		c.sweeps = append(c.sweeps, sweep{model: m})
	}
}
