package core

import (
	"cmp"
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
)

// WaitMemory is the reason why a batch waits that has an instance but too little memory there.
const WaitMemory = errs.MemoryPressure

// arbiter picks what runs next among all models' proposals for which there are free resources. A proposal stays valid
// until something touches its model. Without a rate limiter every free instance runs; if several batches compete, the
// most urgent one goes first.
type arbiter struct {
	asking []*model // touched, and to be asked
	ready  []*model // with a proposal that may go
	spare  []*Batch // for reuse
	ended  []*Batch // named by the last step's decisions
}

// touch schedules a model to be asked again what it would run.
func (c *Core) touch(m *model) {
	if !m.asking {
		m.asking = true
		c.asking = append(c.asking, m)
	}
}

// arbitrate runs proposals until none is ready.
func (c *Core) arbitrate() {
	for {
		for next := 0; next < len(c.asking); { // asking may touch others
			m := c.asking[next]
			next++
			c.ask(m)
		}
		clear(c.asking)
		c.asking = c.asking[:0]
		m, in := c.mostUrgent()
		if m == nil {
			return
		}
		c.run(m, in)
	}
}

// ask asks a model for a proposal, and sets the time to ask it again.
func (c *Core) ask(m *model) {
	m.asking = false
	if i := slices.Index(c.ready, m); i >= 0 { // it waits for resources
		c.ready = slices.Delete(c.ready, i, i+1)
	}
	p := Proposal{}
	if m.batcher != nil && m.queue.requests > 0 {
		p = m.batcher.Propose(c.now)
		for i, it := range p.Late {
			c.end(it, Refuse, errs.DeadlineQueue, 0)
			p.Late[i] = nil
		}
	}
	before := m.proposal.Reason
	m.proposal = p
	if p.Ready {
		c.ready = append(c.ready, m)
		return
	}
	m.short = false
	if (p.Wait != m.wake || p.Reason != before) && (p.Wait != 0 || p.Reason != "") {
		c.decide(Decision{Kind: Wait, Reason: p.Reason, Unit: m.queue.first(c.now).Unit(), A: int64(p.Wait), B: p.Size})
	}
	c.wakeAt(m, p.Wait)
	c.releaseRetiring(m)
	c.forgetModel(m)
}

func (c *Core) wakeAt(m *model, at mono.Time) {
	m.wake = at
	c.timers.set(&m.timer, at)
}

// mostUrgent removes and returns the ready model whose batch must start first, or, without deadlines, the one that
// was asked first. With a rate limiter it returns the one whose turn it is.
func (c *Core) mostUrgent() (*model, *instance) {
	if c.limiter.on {
		return c.nextTurn()
	}
	best := -1
	for i, m := range c.ready {
		if best < 0 || c.precedes(m, c.ready[best]) {
			best = i
		}
	}
	if best < 0 {
		return nil, nil
	}
	m := c.ready[best]
	c.ready = append(c.ready[:best], c.ready[best+1:]...)
	return m, m.proposal.Prefer
}

// precedes reports whether a ready model goes before another that was asked first: as policies decide, and otherwise
// if its batch must start earlier.
func (c *Core) precedes(m, other *model) bool {
	if order := c.compareShares(m, other); order != 0 {
		return order < 0
	}
	return m.proposal.Urgency != 0 && mono.Earliest(m.proposal.Urgency, other.proposal.Urgency) != other.proposal.Urgency
}

// run commits a model's proposal on an instance, and schedules the model to be asked again.
func (c *Core) run(m *model, in *instance) {
	b := c.newBatch()
	m.batcher.Commit(c.now, in, b)
	switch {
	case len(b.Items) > 0:
		m.short = false
		c.wakeAt(m, 0)
		c.touch(m)
		c.dispatch(in, b)
		return
	case in != m.proposal.Prefer: // only the preferred instance could do it in time
		m.proposal.Bound = true
		c.ready = append(c.ready, m)
	default:
		c.wakeAt(m, 0)
		c.touch(m)
	}
	c.spare = append(c.spare, b)
}

func (c *Core) dispatch(in *instance, b *Batch) {
	c.lastBatch++
	b.takes = in.takes(b.Size, b.shape)
	b.worker, b.instance, b.Model, b.Dispatched = in.worker, in, in.model.ref, c.now
	b.ID, b.Instance, b.LatestStart = infer.BatchID{Epoch: c.epoch, Number: c.lastBatch}, in.id, b.latestStart()
	for _, it := range b.Items {
		c.leaveWaiting(it)
		c.timers.set(&it.timer, it.Deadline)
		c.started.Add(it.Work.Request)
		it.Work.Epoch, it.Request.Work.Epoch = c.epoch, c.epoch
		if s := it.sequence; s != nil {
			s.running, s.last, s.begun = it, it.Work.Request, true
		}
	}
	mean, _ := in.costs.of(b.Size, b.shape)
	c.shares.charge(b, cmp.Or(mean, in.model.queue.row*float64(b.Size)))
	in.credits--
	in.running++
	c.limiter.begin(in)
	in.work += b.takes
	in.busyUntil = in.freeAt(c.now).Add(b.takes)
	in.worker.used += b.bytes
	c.batches[b.ID] = b
	in.worker.batches = append(in.worker.batches, b)
	c.decide(Decision{Kind: Dispatch, Batch: b.ID, Instance: in.id, A: b.Size, B: int64(b.LatestStart), batch: b})
}

// vacate removes a batch from its instance, if the instance is known.
func (c *Core) vacate(b *Batch) {
	in := b.instance
	if in == nil {
		return
	}
	b.instance = nil
	in.running--
	c.limiter.use(in, -1)
	in.work -= b.takes
	in.busyUntil = min(in.busyUntil, c.now.Add(in.work)) // a batch may run there all the time
	in.worker.used -= b.bytes
	c.touch(in.model)
	if in.worker.memory > 0 {
		c.touchShort(in.worker)
	}
}

// recycle makes the batches that the last step's decisions named available for reuse.
func (c *Core) recycle() {
	for i, b := range c.ended {
		b.reset()
		c.spare = append(c.spare, b)
		c.ended[i] = nil
	}
	c.ended = c.ended[:0]
}

func (c *Core) newBatch() *Batch {
	if n := len(c.spare); n > 0 {
		b := c.spare[n-1]
		c.spare = c.spare[:n-1]
		return b
	}
	return &Batch{}
}

// startFor returns when something that takes the given time must start; 0 if there is no deadline.
func startFor(deadline mono.Time, takes time.Duration) mono.Time {
	if deadline == 0 {
		return 0
	}
	return deadline.Add(-takes)
}
