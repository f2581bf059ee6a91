package command

import (
	"context"
	"sync"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/remote/control"
	"github.com/nereid-serving/nereid/libs/remote/leader"
	"github.com/nereid-serving/nereid/services/gateway"
)

// statistics ask the schedulers of pools. What a pool needs for it begins with
// the first question, and lasts as long as the process.
type statistics struct {
	bus     *bus.Bus
	options control.Options
	finders *lifecycle.Growing

	mu    sync.Mutex
	pools map[string]*control.Pool // guarded by mu
}

func newStatistics(b *bus.Bus, o control.Options) *statistics {
	return &statistics{bus: b, options: o, finders: lifecycle.NewGrowing(), pools: make(map[string]*control.Pool)}
}

// of is the source for a pool.
func (s *statistics) of(pool string) gateway.StatisticsSource {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.pools[pool]; known != nil {
		return known
	}
	finder := leader.New(s.bus, leader.Pool(pool))
	s.pools[pool] = control.NewPool(finder, s.options)
	s.finders.Add(finder.Run)
	return s.pools[pool]
}

// Run follows the pools' schedulers until ctx is done, and ends the calls that
// are under way then.
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
