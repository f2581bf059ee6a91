package cache

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nereid-serving/nereid/libs/infer"
)

// flights are the requests in execution that equal ones may follow.
type flights struct {
	mu sync.Mutex
	by map[Key]*flight // guarded by mu
}

func newFlights() flights { return flights{by: make(map[Key]*flight)} }

// flight is a request in execution.
type flight struct {
	followers int           // guarded by the flights' mu
	landed    chan struct{} // closed when entry is set
	entry     *entry        // nil if the request had no response that can be shared
}

// share is one request's part in flights.
type share struct {
	flights *flights
	key     Key
	leads   atomic.Pointer[flight] // until it has landed; nil for a request that follows
}

// join returns the flight to follow, or nil if there is none; the request is then executed for those that
// follow it.
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

// land passes the request's response, which the caller still owns, to its followers. A failure or an incomplete
// response is not shared: the next of them is executed. nil means that the request ended without a response.
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
	go func() { // whoever delivers responses does not wait for the copy
		f.entry = newEntry(held)
		held.Release()
		close(f.landed)
	}()
}
