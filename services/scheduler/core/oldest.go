package core

import (
	"cmp"
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
)

// oldest is Triton's oldest strategy for sequences: an instance batches the next requests of its sequences
// dynamically, earliest arrival first.
type oldest struct {
	dynamic
	items []*Item // that could go next, in order
}

func newOldest(m *model, c *modelconfig.Config) *oldest {
	o := &oldest{dynamic: dynamic{
		model: m, maxSize: maxSize(c), preferred: c.Sequences.PreferredSizes, likeness: newLikeness(c),
		delay: time.Duration(c.Sequences.MaxQueueDelayMicros) * time.Microsecond,
	}}
	if len(o.preferred) == 0 {
		o.preferred = []int64{o.maxSize}
	}
	return o
}

// Propose offers the batch of the instance whose oldest request came first.
func (o *oldest) Propose(now mono.Time) Proposal {
	if o.late = o.model.hopelessItems(o.late[:0], now); len(o.late) > 0 {
		return Proposal{Late: o.late} // ending these ends their sequences
	}
	var best choice
	for _, in := range o.model.instances {
		if in.takesSequences() {
			best.consider(o.offer(now, in))
		}
	}
	return best.Proposal
}

// offer returns what an instance could run, and when its first item arrived.
func (o *oldest) offer(now mono.Time, in *instance) (p Proposal, since mono.Time) {
	e := o.form(now, in)
	takes := in.takes(e.size, e.shape)
	p = Proposal{Prefer: in, Bound: true, Size: e.size, Urgency: startFor(e.tightest, takes)}
	switch due := e.due(o.delay, takes); {
	case e.short:
		p.Reason = WaitMemory
	case e.items == 0:
	case e.full || e.cut.items > 0 || now >= due:
		p.Ready = true
	default:
		p.Wait = due
	}
	return p, e.oldest
}

// form adds the items that could go next, as far as they join the batch of the first one.
func (o *oldest) form(now mono.Time, in *instance) (e candidate) {
	o.items = in.readyItems(o.items[:0])
	slices.SortStableFunc(o.items, func(a, b *Item) int { return cmp.Compare(a.Enqueued, b.Enqueued) })
	start := o.model.onTime(now)
	for _, it := range o.items {
		if it == o.items[0] {
			e.oldest = it.Enqueued
		}
		if !o.joins(&e, o.items[0], it, start, in) {
			break
		}
		o.extend(&e, it, now)
	}
	e.full = e.full || e.size >= o.preferred[len(o.preferred)-1]
	return e
}

// Commit removes the items of the next batch from the queue.
func (o *oldest) Commit(now mono.Time, in *instance, b *Batch) {
	e := o.form(now, in)
	for _, it := range o.items[:o.next(now, &e, in).items] {
		o.model.queue.remove(it)
		b.add(it)
	}
}

// Backlog counts one batch per request of the sequence.
func (o *oldest) Backlog(it *Item, t tally, own bool) (batches, size, joined int64) {
	return o.model.backlogOf(it, t, own, min(o.maxSize, int64(o.model.sequences.slots)))
}
