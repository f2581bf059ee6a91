package lifecycle

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Growing runs functions of which more come while it runs. It is safe for
// concurrent use.
type Growing struct {
	news chan struct{} // of one place: there are some that do not run

	mu   sync.Mutex
	idle []func(context.Context) error // that do not run yet; guarded by mu
}

// NewGrowing makes one of no functions.
func NewGrowing() *Growing { return &Growing{news: make(chan struct{}, 1)} }

// Add has a function run, from now on or from the begin of [Growing.Run].
func (g *Growing) Add(run func(context.Context) error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.idle = append(g.idle, run)
	select {
	case g.news <- struct{}{}:
	default:
	}
}

// Run runs them until ctx is done or one of them fails, and all have ended. It
// returns the first error.
func (g *Growing) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for {
		for _, run := range g.take() {
			group.Go(func() error { return run(ctx) })
		}
		select {
		case <-g.news:
		case <-ctx.Done():
			return group.Wait()
		}
	}
}

func (g *Growing) take() []func(context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	idle := g.idle
	g.idle = nil
	return idle
}
