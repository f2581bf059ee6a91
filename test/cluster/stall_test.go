package cluster

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/lifecycle"
)

// stalling is how long a write to NATS takes on a machine on which leases of 2 s
// end although their holders renew them: where the disk or the processors stand
// still for as long, NATS is as good as away, whatever else a row does to it.
const stalling = time.Second

// pulse is how long NATS takes for a write, by a connection of the test's own
// that no row harms.
type pulse struct {
	mu     sync.Mutex
	stalls []stall // guarded by mu
}

type stall struct{ begun, ended time.Time }

// watch writes until ctx is done.
func (p *pulse) watch(ctx context.Context, b *bus.Bus) error {
	settings, err := bus.NewBucket(b, bus.Settings, bus.Codec[struct{}]{})
	if err != nil {
		return err
	}
	for ; ctx.Err() == nil; lifecycle.Pause(ctx, stalling/10) {
		begun := time.Now()
		// A mark that a key has no value, where it had none: nobody is told.
		if _ = settings.Delete(ctx, "pulse", 0); time.Since(begun) < stalling {
			continue
		}
		p.mu.Lock()
		p.stalls = append(p.stalls, stall{begun, time.Now()})
		p.mu.Unlock()
	}
	return nil
}

// stalled reports whether NATS stood still between two times.
func (p *pulse) stalled(from, to time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.stalls, func(s stall) bool { return s.begun.Before(to) && s.ended.After(from) })
}
