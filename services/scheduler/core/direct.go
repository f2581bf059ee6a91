package core

import (
	"time"

	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
)

// direct is Triton's direct strategy for sequences: each sequence occupies one row of its instance's batches for its
// whole life. A batch takes the next request of every slot that has one, and may wait until enough slots have.
type direct struct {
	model *model
	likeness
	delay time.Duration
	least float32 // the share of slots with a request from which on a batch does not wait
	items []*Item
	late  []*Item
}

func newDirect(m *model, c *modelconfig.Config) *direct {
	return &direct{
		model: m, likeness: newLikeness(c), least: c.Sequences.MinSlotUtilization,
		delay: time.Duration(c.Sequences.MaxQueueDelayMicros) * time.Microsecond,
	}
}

// Propose offers the batch of the instance whose oldest request came first.
func (d *direct) Propose(now mono.Time) Proposal {
	if d.late = d.model.hopelessItems(d.late[:0], now); len(d.late) > 0 {
		return Proposal{Late: d.late} // ending these ends their sequences
	}
	var best choice
	for _, in := range d.model.instances {
		if in.takesSequences() {
			best.consider(d.offer(now, in))
		}
	}
	return best.Proposal
}

// offer returns what an instance could run, and when its oldest item arrived.
func (d *direct) offer(now mono.Time, in *instance) (p Proposal, oldest mono.Time) {
	head, ready := d.form(in)
	if head == nil {
		return Proposal{}, 0
	}
	p = Proposal{Prefer: in, Bound: true, Size: in.rows()}
	due := head.Enqueued.Add(d.delay)
	for _, it := range d.items {
		p.Urgency = mono.Earliest(p.Urgency, it.Deadline)
	}
	switch {
	case len(d.items) == 0:
		p.Reason = WaitMemory
	case float32(ready) < d.least*float32(len(in.slots)) && now < due:
		p.Wait = due
	default:
		p.Ready = true
	}
	return p, head.Enqueued
}

// form puts the items of the next batch into d.items, by slot: those that may share a batch with the oldest, as far
// as memory allows. It returns the oldest item, and how many slots have a request.
func (d *direct) form(in *instance) (head *Item, ready int) {
	d.items = in.readyItems(d.items[:0])
	ready = len(d.items)
	for _, it := range d.items {
		if head == nil || it.Enqueued < head.Enqueued {
			head = it
		}
	}
	if head == nil {
		return nil, 0
	}
	bytes, n := head.Bytes, 0
	for _, it := range d.items {
		switch {
		case it == head:
		case !d.alike(head.Request, it.Request) || !in.fits(bytes, it.Bytes):
			continue
		default:
			bytes += it.Bytes
		}
		d.items[n] = it
		n++
	}
	if d.items = d.items[:n]; !in.fits(0, head.Bytes) {
		d.items = d.items[:0]
	}
	return head, ready
}

// Commit removes the items of the next batch from the queue.
func (d *direct) Commit(_ mono.Time, in *instance, b *Batch) {
	d.form(in)
	for _, it := range d.items {
		d.model.queue.remove(it)
		b.add(it)
	}
	b.Size = in.rows()
}

// Backlog counts one batch per request of the sequence.
func (d *direct) Backlog(it *Item, t tally, own bool) (batches, size, joined int64) {
	return d.model.backlogOf(it, t, own, int64(d.model.sequences.slots))
}

// rows returns how many slots a direct batch of the instance has: up to the highest that has a sequence.
func (in *instance) rows() int64 {
	for i := len(in.slots) - 1; i >= 0; i-- {
		if in.slots[i] != nil {
			return int64(i) + 1
		}
	}
	return 0
}

// choice is the best of the proposals of several instances.
type choice struct {
	Proposal
	oldest mono.Time
}

// consider compares a proposal with the best so far. Among ready proposals, the one whose oldest item arrived first
// wins; if none is ready, best accumulates what to wait for.
func (best *choice) consider(p Proposal, oldest mono.Time) {
	switch {
	case p.Ready && (!best.Ready || oldest < best.oldest):
		best.Proposal, best.oldest = p, oldest
	case best.Ready:
	default:
		best.Wait = mono.Earliest(best.Wait, p.Wait)
		if p.Reason != "" {
			best.Reason = p.Reason
		}
		best.Size = max(best.Size, p.Size)
	}
}

// hopelessItems appends the items that could go next but cannot be done in time even alone.
func (m *model) hopelessItems(late []*Item, now mono.Time) []*Item {
	start := m.onTime(now)
	for _, in := range m.instances {
		if !in.takesSequences() {
			continue
		}
		for _, s := range in.slots {
			if it := s.ready(); it != nil && it.hopeless(start, in) {
				late = append(late, it)
			}
		}
	}
	return late
}

// backlogOf counts, for an item of a live sequence, one batch per waiting request of that sequence on the one
// instance that runs it; for other items, batches that all slots share.
func (m *model) backlogOf(it *Item, t tally, own bool, size int64) (batches, of, joined int64) {
	if !own {
		return 0, size, 0
	}
	batches = t.size / size
	if s := m.sequences.live[correlation{it.Request.Sequence.ID, it.Request.Sequence.Key}]; s != nil {
		batches = int64(s.waiting.n * max(len(m.instances), 1))
	}
	return batches, size, size
}
