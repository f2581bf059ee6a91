package registry

import (
	"context"
	"sync"
	"time"
)

// leaderTimeout is for how long a caller waits for this replica to lead: at its
// start, and when its lease was lost because the store or the processors stood
// still.
const leaderTimeout = 30 * time.Second

// leaderState notifies callers of the present leadership. Its methods are safe for concurrent
// use.
type leaderState struct {
	mu       sync.Mutex
	current  *leadership   // nil while this replica does not lead; guarded by mu
	expected bool          // a leadership is present, or expected; guarded by mu
	changed  chan struct{} // closed and replaced at each change; guarded by mu
}

func newLeaderState() *leaderState { return &leaderState{expected: true, changed: make(chan struct{})} }

// set publishes that a leadership begins, or with nil that it ends. It is awaited unless
// another replica leads or this one stops.
func (s *leaderState) set(t *leadership, awaited bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current, s.expected = t, awaited
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *leaderState) get() (t *leadership, awaited bool, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current, s.expected, s.changed
}

// wait waits for a leadership that has not ended; nil if there is none to wait for or
// the wait ends before it comes.
func (s *leaderState) wait(ctx context.Context) *leadership {
	ctx, cancel := context.WithTimeout(ctx, leaderTimeout)
	defer cancel()
	for {
		t, awaited, changed := s.get()
		switch {
		case !awaited:
			return nil
		case t != nil && !t.hasEnded():
			return t
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

func (l *leadership) hasEnded() bool {
	select {
	case <-l.ended:
		return true
	default:
		return false
	}
}
