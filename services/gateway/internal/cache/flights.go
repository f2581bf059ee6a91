package cache

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nereid-serving/nereid/libs/infer"
)

// flights are the requests that are executed and that equal ones may follow.
type flights struct {
	mu sync.Mutex
	by map[Key]*flight // guarded by mu
}

func newFlights() flights { return flights{by: make(map[Key]*flight)} }

// flight is one request that is executed.
type flight struct {
	followers int           // guarded by the flights' mu
	landed    chan struct{} // closed when entry is set
	entry     *entry        // nil where the request had no response that can be shared
}

// share is one request's part in flights.
type share struct {
	flights *flights
	key     Key
	leads   atomic.Pointer[flight] // until it has landed; nil for a request that follows
}

// join returns the flight to follow; nil where there is none, and the request is to be
// executed for those that follow it.
func (s *share) join() *flight {
	s.flights.mu.Lock()
	defer s.flights.mu.Unlock()
	f := s.flights.by[s.key]
	if f != nil {
		f.followers++
		return f
	}
	f = &flight{landed: make(chan struct{})}
	s.flights.by[s.key] = f
	s.leads.Store(f)
	return nil
}

// land gives the request's response, which stays the caller's, to those that follow it.
// A failure is none of theirs, nor is what is no whole response: the next of them is
// executed. nil is a request that ends without a response.
func (s *share) land(p *infer.Response) {
	f := s.leads.Swap(nil)
	if f == nil {
		return
	}
	s.flights.mu.Lock()
	delete(s.flights.by, s.key)
	followers := f.followers
	s.flights.mu.Unlock()
	if followers == 0 || p == nil || p.Err != nil || !p.Final {
		close(f.landed)
		return
	}
	held := &infer.Response{Outputs: slices.Clone(p.Outputs), Parameters: slices.Clone(p.Parameters)}
	for i := range held.Outputs {
		held.Outputs[i].Data = held.Outputs[i].Data.Retain()
	}
	go func() { // who brings responses does not wait for the copying
		f.entry = newEntry(held)
		held.Release()
		close(f.landed)
	}()
}
