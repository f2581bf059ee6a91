package core

import "github.com/nereid-serving/nereid/libs/errs"

// Sequences counts a model's sequences, and how past ones ended.
type Sequences struct {
	// Live have a slot, Backlog wait for one.
	Live, Backlog int
	// Ended have run their request with END. Idle had no request for too long. Canceled and TimedOut ended because a
	// request was canceled or timed out before it ran. StateLost lost their state, or have a state that does not
	// match their requests.
	Ended, Idle, StateLost, Canceled, TimedOut uint64
}

// sequenceEnd is how a sequence has ended.
type sequenceEnd uint8

const (
	endNone sequenceEnd = iota // it is forgotten, and comes again
	endEnded
	endIdle
	endLost
	endCanceled
	endTimedOut
	sequenceEnds
)

// countSequences counts a model's sequences; nil if it does not batch them.
func (m *model) countSequences() *Sequences {
	q := m.sequences
	if q == nil {
		return nil
	}
	n := &Sequences{
		Backlog: len(q.backlog), Ended: q.ends[endEnded], Idle: q.ends[endIdle], StateLost: q.ends[endLost],
		Canceled: q.ends[endCanceled], TimedOut: q.ends[endTimedOut],
	}
	for _, in := range m.instances {
		for _, s := range in.slots {
			if s != nil {
				n.Live++
			}
		}
	}
	for _, list := range q.away {
		n.Live += len(list)
	}
	return n
}

// outcome returns how a sequence ends that ends now.
func (s *sequence) outcome() sequenceEnd {
	switch {
	case s.reason == errs.Canceled:
		return endCanceled
	case s.reason == errs.SequenceTimeout:
		return endTimedOut
	case s.over || s.lost:
		return endLost
	case s.ended:
		return endEnded
	case s.timer.pos == 0 && s.begun:
		return endIdle
	}
	return endNone
}
