package schedule

import (
	"sync"

	"github.com/nereid-serving/nereid/libs/plane/link"
)

// end is what the scheduler's ends of streams have in common.
type end struct {
	incarnation uint64
	term        *term
	link        *link.Link
	over        chan struct{} // closed when the backend knows about the end
}

func (e *end) base() *end { return e }

// ends are the open streams, by the incarnation of the peer.
type ends[E interface{ base() *end }] struct {
	mu sync.RWMutex
	of map[uint64]E // guarded by mu
}

// enter adds a stream once an older one of the same peer has ended and the backend knows about that.
func (s *ends[E]) enter(e E) {
	for {
		s.mu.Lock()
		before, taken := s.of[e.base().incarnation]
		if !taken {
			s.of[e.base().incarnation] = e
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		before.base().link.Close(errReplaced)
		<-before.base().over
	}
}

// leave removes a stream once the backend knows about its end.
func (s *ends[E]) leave(e E) {
	s.mu.Lock()
	delete(s.of, e.base().incarnation)
	s.mu.Unlock()
	close(e.base().over)
}

// get returns the stream of a peer, or nil.
func (s *ends[E]) get(incarnation uint64) E {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.of[incarnation]
}

// each calls f for every stream.
func (s *ends[E]) each(f func(E)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, e := range s.of {
		f(e)
	}
}
