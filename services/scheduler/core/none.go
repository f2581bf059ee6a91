package core

import "github.com/nereid-serving/nereid/libs/mono"

// none gives every request its own execution, first come first served and without bounds: Triton's default scheduler.
type none struct {
	model *model
	late  []*Item
}

// Propose offers the first request that can be done in time.
func (n *none) Propose(now mono.Time) Proposal {
	m, p := n.model, Proposal{}
	n.late = n.late[:0]
	for it := m.queue.first(now); it != nil; it = m.queue.first(now) {
		in, short := m.free(it.Bytes)
		if in == nil {
			if short {
				p.Reason, p.Size = WaitMemory, it.BatchSize
			} else if in = m.soonFree(now, it.Bytes); in != nil && it.mayPipeline(now, in, in.costs.estimate(it.BatchSize, it.shape)) {
				p.Ready, p.Prefer, p.Size, p.Urgency = true, in, it.BatchSize, it.Deadline
			}
			break
		}
		if takes := in.takes(it.BatchSize, it.shape); it.doneBy(now.Add(takes)) {
			p.Ready, p.Prefer, p.Size, p.Urgency = true, in, it.BatchSize, startFor(it.Deadline, takes)
			break
		}
		m.queue.remove(it)
		n.late = append(n.late, it)
	}
	p.Late = n.late
	return p
}

// Commit takes the first request.
func (n *none) Commit(now mono.Time, in *instance, b *Batch) {
	if it := n.model.queue.first(now); it != nil && in.fits(0, it.Bytes) {
		n.model.queue.remove(it)
		b.add(it)
	}
}

// Backlog counts one batch per request.
func (n *none) Backlog(it *Item, t tally, _ bool) (batches, size, joined int64) {
	return t.items, it.BatchSize, it.BatchSize
}
