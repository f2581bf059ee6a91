package registry

import (
	"context"
	"sync"
	"time"
)

// leadPatience is for how long a caller waits for this replica to lead: at its
// start, and when its lease was lost because the store or the processors stood
// still.
const leadPatience = 30 * time.Second

// terms tells callers of the present term. Its methods are safe for concurrent
// use.
type terms struct {
	mu      sync.Mutex
	present *term         // nil while this replica does not lead; guarded by mu
	awaited bool          // a term is present, or comes in a moment; guarded by mu
	changed chan struct{} // closed and replaced at each change; guarded by mu
}

func newTerms() *terms { return &terms{awaited: true, changed: make(chan struct{})} }

// set tells of a term's begin, or with nil of its end. It is awaited unless
// another replica leads or this one stops.
func (s *terms) set(t *term, awaited bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.present, s.awaited = t, awaited
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *terms) get() (t *term, awaited bool, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.present, s.awaited, s.changed
}

// wait waits for a term that is not over; nil if there is none to wait for or
// the wait ends before it comes.
func (s *terms) wait(ctx context.Context) *term {
	ctx, cancel := context.WithTimeout(ctx, leadPatience)
	defer cancel()
	for {
		t, awaited, changed := s.get()
		switch {
		case !awaited:
			return nil
		case t != nil && !t.isOver():
			return t
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

func (t *term) isOver() bool {
	select {
	case <-t.over:
		return true
	default:
		return false
	}
}
