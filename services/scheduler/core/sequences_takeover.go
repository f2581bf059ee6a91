package core

import (
	"cmp"
	"maps"
	"slices"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// recallSequences holds those that have their states on a worker against those
// that the worker says it has. With the report that was awaited come those that an
// earlier scheduler had. Later, others have ended here, or one of their requests
// has failed while they were not known.
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
		case h.Request != (infer.Work{}): // an earlier scheduler had its inputs: it cannot go on
		case m.batcher == nil:
			m.held = append(m.held, h)
		default:
			c.adoptSequence(m, h)
		}
	}
}

// uprootAway uproots the sequences whose states are on a worker that is away, but
// for those that it has.
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

// adoptSequence takes over a sequence that a worker has the state of, and of which
// nothing is known here. If another has said so, too, one of the states is from
// before the sequence began anew; nobody knows which, and it is lost.
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

// endUndecided notes that an item has ended that was taken in before it was known
// what of its sequence has begun. Its sequence ends if it has not run; and if it has,
// where the state is not that of the sequence that has its ID now.
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

// noteInterrupted has those requests of a sequence refused that come again, up to
// the given ones.
func (c *Core) noteInterrupted(m infer.ModelRef, id correlation, upTo ...infer.RequestID) {
	at := sequenceName{m, id}
	for _, of := range upTo {
		if last, ok := c.interrupted[at]; of.Number != 0 && (!ok || last.Origin != of.Origin || last.Number < of.Number) {
			c.interrupted[at] = of
		}
	}
}

// newest is the last request that a sequence has or had here.
func (s *sequence) newest() infer.RequestID {
	if s.waiting.tail != nil {
		return s.waiting.tail.Work.Request
	}
	return s.last
}

// lacks reports whether a sequence has requests from before one that has run, and
// has not run here.
func (s *sequence) lacks(id infer.RequestID) bool {
	before := func(other infer.RequestID) bool { return other.Origin == id.Origin && other.Number < id.Number }
	return before(s.last) || s.waiting.head != nil && before(s.waiting.head.Work.Request)
}

// wasInterrupted reports whether an item belongs to a sequence that endUndecided
// has ended. One that starts the next ends that, unless it comes again: it may be
// from before.
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

// conflicts reports whether an item that is submitted again has no place in the
// sequence any more: a later one has begun, as far as is known, or another gateway
// had some that nobody knows the order of.
func (s *sequence) conflicts(it *Item, elsewhere bool) bool {
	id := it.Work.Request
	if s.last.Origin == id.Origin && s.last.Number > id.Number {
		return true
	}
	if !elsewhere {
		return false
	}
	if it.start && s.begun && s.last == (infer.RequestID{}) {
		return true // the state may be from before it, or from after
	}
	other := s.undecided != 0 && s.undecided != id.Origin
	s.undecided = id.Origin
	return other
}
