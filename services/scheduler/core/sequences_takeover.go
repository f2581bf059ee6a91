package core

import (
	"cmp"
	"maps"
	"slices"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// recallSequences compares the sequences whose states should be on a worker with those that the worker says it has.
// An awaited report also brings the sequences of an earlier scheduler. A later report does not: sequences that are
// unknown here have ended here, or one of their requests failed while they were unknown.
func (c *Core) recallSequences(w *worker, held []infer.HeldSequence, awaited bool) {
	has := func(s *sequence) bool {
		return slices.ContainsFunc(held, func(h infer.HeldSequence) bool {
			return h.Instance == s.home && s.id == correlation{h.Sequence.ID, h.Sequence.Key}
		})
	}
	c.uprootAway(w.id, has)
	if !awaited {
		return
	}
	for _, h := range held {
		switch m := c.model(h.Model); {
		case h.Request != (infer.Work{}): // an earlier scheduler had its inputs: it cannot continue
		case m.batcher == nil:
			m.held = append(m.held, h)
		default:
			c.adoptSequence(m, h)
		}
	}
}

// uprootAway uproots the sequences whose states are on an unavailable worker, except those that it still has.
func (c *Core) uprootAway(worker uint64, has func(*sequence) bool) {
	for _, m := range c.modelsInOrder() {
		if m.sequences == nil {
			continue
		}
		away := m.sequences.away
		ids := slices.SortedFunc(maps.Keys(away), func(a, b infer.InstanceID) int { return cmp.Compare(a.Slot, b.Slot) })
		for _, id := range ids {
			if id.Worker != worker {
				continue
			}
			all := away[id]
			away[id] = nil
			for _, s := range all {
				if has(s) {
					away[id] = append(away[id], s)
				} else {
					c.uproot(s)
				}
			}
		}
	}
}

// adoptSequence takes over a sequence whose state a worker has and which is unknown here. If another worker has
// reported the same sequence, one of the two states dates from before the sequence was restarted; nobody knows which,
// so the sequence is lost.
func (c *Core) adoptSequence(m *model, h infer.HeldSequence) {
	id := correlation{h.Sequence.ID, h.Sequence.Key}
	if _, over := c.interrupted[sequenceName{m.ref, id}]; m.sequences == nil || over {
		return
	}
	if s := m.sequences.live[id]; s != nil {
		c.leaveSlot(s)
		c.uproot(s)
		return
	}
	s := newSequence(m, id)
	s.home, s.slot, s.begun = h.Instance, int(h.BatchSlot), true
	m.sequences.live[id] = s
	m.sequences.away[h.Instance] = append(m.sequences.away[h.Instance], s)
	c.timers.set(&s.timer, c.now.Add(max(h.Idle, 1)))
}

// endUndecided notes the end of an item that was accepted before it was known what of its sequence had started. If
// the item has not run, its sequence ends. If it has, the sequence ends where its state is not that of the sequence
// that has the ID now.
func (c *Core) endUndecided(it *Item, kind DecisionKind, reason errs.Reason) {
	id, of := correlation{it.Request.Sequence.ID, it.Request.Sequence.Key}, it.Work.Request
	var s *sequence
	if m := c.models[it.Model]; m != nil && m.sequences != nil {
		s = m.sequences.live[id]
	}
	if kind == HandOff && (reason != errs.RequestFinished || s == nil || !s.lacks(of)) {
		return
	}
	c.noteInterrupted(it.Model, id, of)
	if s != nil {
		c.interrupt(s, reason)
	}
}

// noteInterrupted causes resubmitted requests of a sequence to be refused, up to the given ones.
func (c *Core) noteInterrupted(m infer.ModelRef, id correlation, upTo ...infer.RequestID) {
	at := sequenceName{m, id}
	for _, of := range upTo {
		if last, ok := c.interrupted[at]; of.Number != 0 && (!ok || last.Origin != of.Origin || last.Number < of.Number) {
			c.interrupted[at] = of
		}
	}
}

// newest returns the last request that a sequence has or had here.
func (s *sequence) newest() infer.RequestID {
	if s.waiting.tail != nil {
		return s.waiting.tail.Work.Request
	}
	return s.last
}

// lacks reports whether a sequence has requests that precede one that has run, but not here.
func (s *sequence) lacks(id infer.RequestID) bool {
	before := func(other infer.RequestID) bool { return other.Origin == id.Origin && other.Number < id.Number }
	return before(s.last) || s.waiting.head != nil && before(s.waiting.head.Work.Request)
}

// wasInterrupted reports whether an item belongs to a sequence that endUndecided has ended. An item that starts the
// next sequence clears the record, unless it was resubmitted: then it may date from before.
func (c *Core) wasInterrupted(m *model, id correlation, it *Item) bool {
	at := sequenceName{m.ref, id}
	last, ok := c.interrupted[at]
	before := last.Origin == it.Work.Request.Origin && last.Number > it.Work.Request.Number
	if !ok || before || !it.start || it.Work.Attempt > 1 {
		return ok
	}
	delete(c.interrupted, at)
	return false
}

// conflicts reports whether a resubmitted item no longer has a place in the sequence: a later one has started, as far
// as is known, or another gateway had some and nobody knows their order.
func (s *sequence) conflicts(it *Item, elsewhere bool) bool {
	id := it.Work.Request
	if s.last.Origin == id.Origin && s.last.Number > id.Number {
		return true
	}
	if !elsewhere {
		return false
	}
	if it.start && s.begun && s.last == (infer.RequestID{}) {
		return true // the state may date from before it or from after it
	}
	other := s.undecided != 0 && s.undecided != id.Origin
	s.undecided = id.Origin
	return other
}
