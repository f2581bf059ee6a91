package core

import (
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/invariant"
	"github.com/nereid-serving/nereid/libs/modelconfig"
)

// sequences are the sequences of a model: those that have a slot of the instance that holds their state, and the
// backlog of those that wait for a slot.
//
// A sequence starts with the request that has START. It ends when the request with END has run, when it has had no
// request for too long, or when one of its requests was accepted but not run: later ones would run on a state that
// lacks it. The waiting requests of an ended sequence are refused. In between, the sequence retains its slot and has
// at most one request in a batch.
type sequences struct {
	slots     int // of each instance
	idle      time.Duration
	iterative bool
	generated uint64                    // the last correlation ID that the server generated
	live      map[correlation]*sequence // those that accept requests
	backlog   []*sequence
	away      map[infer.InstanceID][]*sequence // their worker has no stream
	ends      [sequenceEnds]uint64
}

// correlation is a correlation ID.
type correlation struct {
	number uint64
	text   string
}

// sequence is one sequence. It is in the backlog, or has a home: the instance that holds its state, which may be
// unavailable. A sequence that has neither has lost its state.
type sequence struct {
	id       correlation
	model    *model
	waiting  list
	running  *Item // in a batch that its instance has not moved on from
	backlog  bool
	home     infer.InstanceID
	instance *instance // at home; nil while that is unavailable
	slot     int
	// last is the request that was dispatched last. undecided is the gateway of requests that an earlier scheduler
	// had.
	last      infer.RequestID
	undecided uint64
	begun     bool // it has a state, as far as is known
	ended     bool // the request with END is known: no other is accepted
	over      bool // waiting requests are refused for reason
	reason    errs.Reason
	lost      bool // its state is lost, and no client has been told
	counted   bool // its end is counted
	timer     timer
}

func newSequences(c *modelconfig.SequenceBatching) *sequences {
	return &sequences{
		slots: c.Slots, idle: c.Idle(), iterative: c.Iterative,
		live: make(map[correlation]*sequence), away: make(map[infer.InstanceID][]*sequence),
	}
}

// inSequence reports whether a request has a correlation ID.
func inSequence(r *infer.Request) bool { return r.Sequence.ID != 0 || r.Sequence.Key != "" }

// sequenceOf returns the sequence that accepts an item, which may be new, or the reason why there is none.
func (c *Core) sequenceOf(m *model, it *Item) (*sequence, errs.Reason) {
	q, r := m.sequences, it.Request
	switch {
	case it.sequence != nil: // it comes back
		return it.sequence, it.sequence.reason
	case it.BatchSize != 1:
		return nil, errs.BatchSizeExceeded
	case !inSequence(r) && !q.iterative:
		return nil, errs.CorrelationMissing
	case !inSequence(r):
		q.generated++
		it.start = true
		return newSequence(m, correlation{number: q.generated}), ""
	}
	id := correlation{r.Sequence.ID, r.Sequence.Key}
	it.start, it.end = r.Sequence.Start, r.Sequence.End
	s, over := q.live[id], c.wasInterrupted(m, id, it)
	switch again := it.Work.Attempt > 1; {
	case over && (again || it.start):
		return nil, errs.SequenceLost
	case over:
		return nil, errs.SequenceNotStarted
	case s != nil && s.lost:
		c.endSequence(s)
		if !it.start || again {
			return nil, errs.SequenceLost
		}
		return newSequence(m, id), ""
	case s == nil && it.start:
		return newSequence(m, id), ""
	case s == nil && again:
		return nil, errs.SequenceLost
	case s == nil:
		return nil, errs.SequenceNotStarted
	case again && s.conflicts(it, c.elsewhere(it)):
		c.interrupt(s, errs.SequenceLost)
		return nil, errs.SequenceLost
	}
	return s, ""
}

func newSequence(m *model, id correlation) *sequence {
	s := &sequence{id: id, model: m, waiting: list{by: ofSequence}}
	s.timer.sequence = s
	return s
}

// enqueue adds an item to its sequence: an item that comes back before all others, a new one behind those that its
// gateway sent before it.
func (c *Core) enqueue(s *sequence, it *Item) {
	if it.sequence != nil {
		s.waiting.insert(it, s.waiting.head)
		s.begun = s.begun && !it.start
	} else {
		var next *Item
		for last := s.waiting.tail; last != nil && last.after(it); last = last.links[ofSequence].prev {
			next = last
		}
		s.waiting.insert(it, next)
		it.sequence = s
		c.timers.set(&s.timer, 0)
		switch {
		case !inSequence(it.Request): // nobody can name it
			s.ended = true
		case it.end:
			s.ended = true
			c.unname(s)
		case !s.ended:
			s.model.sequences.live[s.id] = s
		}
	}
	if s.running == it {
		s.running = nil
	}
	it.timeout = 0
	c.proceed(s)
	if s.backlog && it.Request.Timeout > 0 {
		it.timeout = it.Enqueued.Add(it.Request.Timeout)
	}
}

// after reports whether the same gateway sent an item after another.
func (it *Item) after(other *Item) bool {
	a, b := it.Work.Request, other.Work.Request
	return a.Origin == b.Origin && a.Number > b.Number
}

// unname makes a sequence unreachable by its correlation ID.
func (c *Core) unname(s *sequence) {
	if live := s.model.sequences.live; live[s.id] == s {
		delete(live, s.id)
	}
}

// proceed takes the next step of a sequence, depending on its requests and its home: end it, start its idle timer,
// put it into the backlog, or have its model asked again.
func (c *Core) proceed(s *sequence) {
	head := s.waiting.head
	switch homeless := s.home == (infer.InstanceID{}) && !s.backlog; {
	case s.running != nil:
	case s.over:
		c.endSequence(s)
	case head == nil && (s.ended || s.backlog || !s.begun):
		c.endSequence(s)
	case head == nil && homeless: // the next request reports the loss
		s.lost = true
		fallthrough
	case head == nil:
		c.timers.set(&s.timer, c.now.Add(s.model.sequences.idle))
	case homeless && head.start:
		s.backlog, s.begun = true, false
		s.model.sequences.backlog = append(s.model.sequences.backlog, s)
		c.assignSlots(s.model)
	case homeless, !s.begun && !head.start && (head.gateway == nil || !head.gateway.gone): // its START has been handed off
		c.interrupt(s, errs.SequenceLost)
	default:
		c.touch(s.model)
	}
}

// assignSlots gives free slots to the sequences of the backlog: the lowest slot first, and among equal ones that of
// the first instance.
func (c *Core) assignSlots(m *model) {
	q := m.sequences
	for len(q.backlog) > 0 {
		in, slot := m.freeSlot()
		if in == nil {
			return
		}
		s := q.backlog[0]
		q.backlog = slices.Delete(q.backlog, 0, 1)
		s.backlog, s.home, s.instance, s.slot = false, in.id, in, slot
		in.slots[slot] = s
		for it := s.waiting.head; it != nil; it = it.links[ofSequence].next {
			if it.parent != nil {
				c.doubt(m)
			}
			if it.timeout != 0 { // the timeout was for the backlog
				it.timeout = 0
				c.timers.set(&it.timer, it.Deadline)
			}
		}
		c.touch(m)
	}
}

// freeSlot returns the lowest free slot. It ignores unavailable instances, and retiring ones unless no others are
// left.
func (m *model) freeSlot() (best *instance, slot int) {
	drain := m.retiring == len(m.instances)
	for _, in := range m.instances {
		for in.freeSlot < len(in.slots) && in.slots[in.freeSlot] != nil {
			in.freeSlot++
		}
		if in.freeSlot < len(in.slots) && in.retiring == drain && !in.away() && (best == nil || in.freeSlot < slot) {
			best, slot = in, in.freeSlot
		}
	}
	return best, slot
}

// endSequence forgets a sequence, and gives its slot to the next.
func (c *Core) endSequence(s *sequence) {
	if !s.counted {
		s.counted = true
		s.model.sequences.ends[s.outcome()]++
	}
	c.unname(s)
	c.timers.set(&s.timer, 0)
	c.leaveSlot(s)
	s.over, s.backlog, s.instance, s.home = true, false, nil, infer.InstanceID{}
	c.touch(s.model) // an instance may wait for it to retire
}

// leaveSlot frees a sequence's slot for the next sequence, or removes it from the backlog.
func (c *Core) leaveSlot(s *sequence) {
	q := s.model.sequences
	is := func(other *sequence) bool { return other == s }
	switch in := s.instance; {
	case s.backlog:
		q.backlog = slices.DeleteFunc(q.backlog, is)
	case in != nil:
		in.slots[s.slot] = nil
		in.freeSlot = min(in.freeSlot, s.slot)
		c.assignSlots(s.model)
	case s.home != (infer.InstanceID{}):
		q.away[s.home] = slices.DeleteFunc(q.away[s.home], is)
	}
}

// interrupt ends a sequence one of whose requests was not run. Its waiting requests are refused: for the same reason
// if it applies to them too, otherwise because the sequence is lost.
func (c *Core) interrupt(s *sequence, reason errs.Reason) {
	if s.over {
		return
	}
	switch reason {
	case errs.Canceled, errs.SequenceTimeout, errs.NoWorker, errs.ModelNotReady:
	default:
		reason = errs.SequenceLost
	}
	s.over, s.reason = true, reason
	c.unname(s)
	if s.waiting.n > 0 {
		c.sweeps = append(c.sweeps, sweep{sequence: s, reason: reason})
	}
	c.proceed(s)
}

// leaveSequence updates the sequence of an item that has ended, whether the item waited or ran.
func (c *Core) leaveSequence(it *Item, kind DecisionKind, reason errs.Reason) {
	s := it.sequence
	if s == nil {
		return
	}
	if s.running == it {
		s.running = nil
	}
	switch {
	case kind == Refuse || kind == Fail:
		c.interrupt(s, reason)
	case reason == errs.PeerUnreachable && it.end && !s.over: // it may come again
		if other := s.model.sequences.live[s.id]; other != nil { // and would find that one
			c.noteInterrupted(it.Model, s.id, it.Work.Request, s.newest(), other.newest())
			c.interrupt(other, errs.SequenceLost)
			c.interrupt(s, errs.SequenceLost)
			break
		}
		s.ended = false
		s.model.sequences.live[s.id] = s
	}
	c.proceed(s)
}

// goOn notes that the instance has moved on from an item that has responses to come.
func (c *Core) goOn(it *Item) {
	if s := it.sequence; s != nil && s.running == it {
		s.running = nil
		c.proceed(s)
	}
}

// openSlots gives an instance its slots. Sequences that it had before its worker became unavailable get theirs back.
func (c *Core) openSlots(in *instance) {
	q := in.model.sequences
	in.slots = make([]*sequence, q.slots)
	for _, s := range q.away[in.id] {
		if s.slot >= len(in.slots) || in.slots[s.slot] != nil {
			c.uproot(s)
			continue
		}
		s.instance, in.slots[s.slot] = in, s
	}
	delete(q.away, in.id)
	c.assignSlots(in.model)
}

// closeSlots removes the slots of an instance that is gone. With away, the instance may come back and still holds the
// states of its sequences.
func (c *Core) closeSlots(in *instance, away bool) {
	for _, s := range in.slots {
		switch {
		case s == nil:
		case away:
			s.instance = nil
			in.model.sequences.away[in.id] = append(in.model.sequences.away[in.id], s)
		default:
			c.uproot(s)
		}
	}
	in.slots = nil
}

// uproot notes that a sequence's state is gone. A sequence that is about to start again does not need it.
func (c *Core) uproot(s *sequence) {
	s.instance, s.home = nil, infer.InstanceID{}
	c.proceed(s)
}

// forgetSequences forgets a model's sequences. Their requests have been handed off or are gone.
func (c *Core) forgetSequences(m *model) {
	m.held = nil
	q := m.sequences
	if q == nil {
		return
	}
	for _, s := range q.live {
		c.timers.set(&s.timer, 0)
		s.over = true
	}
	for _, s := range q.backlog {
		s.over = true
	}
	clear(q.live)
	clear(q.away)
	q.backlog = nil
}

// occupied reports whether sequences need an instance: those that are live, unless the model has been unloaded, and
// those that have requests.
func (in *instance) occupied() bool {
	return slices.ContainsFunc(in.slots, func(s *sequence) bool {
		return s != nil && (!in.model.removed || s.waiting.n > 0 || s.running != nil)
	})
}

// ready returns the sequence's item that can go in the next batch, or nil.
func (s *sequence) ready() *Item {
	if s == nil || s.running != nil || s.over || s.waiting.head == nil || s.waiting.head.gateway.gone {
		return nil
	}
	return s.waiting.head
}

// readyItems appends the items of an instance's slots that can go in the next batch.
func (in *instance) readyItems(list []*Item) []*Item {
	for _, s := range in.slots {
		if it := s.ready(); it != nil {
			list = append(list, it)
		}
	}
	return list
}

// takesSequences reports whether an instance can run a batch of sequences: it must run nothing, so that each request
// finds the state that the previous one left.
func (in *instance) takesSequences() bool { return in.free() && in.running == 0 }

// checkSequences verifies that slots and sequences are consistent.
func (m *model) checkSequences() {
	for _, in := range m.instances {
		for i, s := range in.slots {
			invariant.Check(s == nil || s.instance == in && s.home == in.id && s.slot == i && !s.backlog, "slot %d of %v has the sequence %+v", i, in.id, s)
			invariant.Check(s == nil || s.running == nil || s.running.batch != nil && s.running.sequence == s, "of sequence %+v runs %+v", s, s)
		}
	}
	if m.sequences == nil {
		return
	}
	for _, s := range m.sequences.backlog {
		invariant.Check(s.backlog && s.instance == nil && s.waiting.n > 0, "the backlog has the sequence %+v", s)
	}
	for id, s := range m.sequences.live {
		invariant.Check(s.id == id && !s.over && !s.ended, "sequence %+v takes requests", s)
		idle := s.running == nil && s.waiting.n == 0
		invariant.Check(idle == (s.timer.pos > 0), "the idle time of sequence %+v does not run", s)
	}
}
