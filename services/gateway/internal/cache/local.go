package cache

import (
	"context"
	"time"

	"github.com/maypok86/otter/v2"
	"github.com/maypok86/otter/v2/stats"
)

// Local stores responses in the memory of the process, bounded in bytes.
type Local struct {
	size    int64
	entries *otter.Cache[Key, *entry]
	counter *stats.Counter
	spent   spent
}

// NewLocal returns a store of at most size bytes; size must be positive.
func NewLocal(size int64) *Local {
	s := &Local{size: size, counter: stats.NewCounter()}
	s.entries = otter.Must(&otter.Options[Key, *entry]{
		MaximumWeight: uint64(size),
		Weigher:       func(_ Key, e *entry) uint32 { return uint32(e.bytes) },
		StatsRecorder: s.counter,
		// The inserting goroutine evicts, so that the bound holds when it returns.
		Executor: func(evict func()) { evict() },
	})
	return s
}

func (s *Local) get(_ context.Context, k Key) *entry {
	started := time.Now()
	e, _ := s.entries.GetIfPresent(k)
	s.spent.lookups.add(time.Since(started))
	return e
}

func (s *Local) set(k Key, made func() *entry) {
	started := time.Now()
	if e := made(); e != nil {
		s.entries.Set(k, e)
	}
	s.spent.insertions.add(time.Since(started))
}

// maxEntry is the maximum size of an entry in bytes: a weight has 32 bits.
const maxEntry = 1<<32 - 1

func (s *Local) limit() int64 { return min(s.size, maxEntry) }

func (*Local) waits() bool { return false }
