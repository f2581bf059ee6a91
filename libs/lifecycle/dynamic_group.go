package lifecycle

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"
)

// DynamicGroup runs functions, to which more may be added while it runs. It is
// safe for concurrent use.
type DynamicGroup struct {
	added chan struct{} // has room for one; wakes Run

	mu   sync.Mutex
	idle []func(context.Context) error // not started yet; guarded by mu
}

// NewDynamicGroup returns an empty group.
func NewDynamicGroup() *DynamicGroup { return &DynamicGroup{added: make(chan struct{}, 1)} }

// Add adds a function, which starts now, or with [DynamicGroup.Run].
func (g *DynamicGroup) Add(run func(context.Context) error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.idle = append(g.idle, run)
	select {
	case g.added <- struct{}{}:
	default:
	}
}

// Run runs the functions until ctx is done or one of them fails, and waits for
// all of them. It returns the first error.
func (g *DynamicGroup) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for {
		for _, run := range g.drain() {
			group.Go(func() error { return run(ctx) })
		}
		select {
		case <-g.added:
		case <-ctx.Done():
			return group.Wait()
		}
	}
}

func (g *DynamicGroup) drain() []func(context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	idle := g.idle
	g.idle = nil
	return idle
}
