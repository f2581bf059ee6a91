package command

import (
	"context"
	"sync"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/services/gateway"
)

// statistics queries the schedulers of pools. The connection to a pool is opened by the first call and lasts as
// long as the process.
type statistics struct {
	bus     *bus.Bus
	options control.Options
	finders *lifecycle.DynamicGroup

	mu    sync.Mutex
	pools map[string]*control.PoolClient // guarded by mu
}

func newStatistics(b *bus.Bus, o control.Options) *statistics {
	return &statistics{bus: b, options: o, finders: lifecycle.NewDynamicGroup(), pools: make(map[string]*control.PoolClient)}
}

// of returns the source for a pool.
func (s *statistics) of(pool string) gateway.StatisticsSource {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.pools[pool]; known != nil {
		return known
	}
	finder := control.NewFinder(s.bus, control.PoolRole(pool))
	s.pools[pool] = control.NewPoolClient(finder, s.options)
	s.finders.Add(finder.Run)
	return s.pools[pool]
}

// Run follows the pools' schedulers until ctx is done, and then cancels the calls in flight.
func (s *statistics) Run(ctx context.Context) error {
	defer s.close()
	return s.finders.Run(ctx)
}

func (s *statistics) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, pool := range s.pools {
		pool.Close()
	}
}
