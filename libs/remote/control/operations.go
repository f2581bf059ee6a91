package control

import (
	"context"
	"sync"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
)

// keepOutcome is for how long the outcome of an operation is kept for a caller
// whose connection broke.
const keepOutcome = time.Minute

// operations are those under way and those that ended a short while ago, by
// what their callers call them.
type operations struct {
	mu  sync.Mutex
	all map[string]*operation // guarded by mu
}

// operation is one; its err and ended are valid after done.
type operation struct {
	done  chan struct{}
	err   error
	ended time.Time
}

func newOperations() *operations { return &operations{all: make(map[string]*operation)} }

// do runs an operation, or takes part in the one of that name. It ends with
// its outcome or with ctx; the operation goes on. What run works with is over,
// once, when run has ended, or will not begin.
func (s *operations) do(ctx context.Context, name string, run func(context.Context) error, over func()) error {
	if name == "" {
		defer over()
		return run(ctx)
	}
	o := s.join(context.WithoutCancel(ctx), name, run, over)
	select {
	case <-o.done:
		return o.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *operations) join(ctx context.Context, name string, run func(context.Context) error, over func()) *operation {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(time.Now())
	if o := s.all[name]; o != nil {
		over()
		return o
	}
	o := &operation{done: make(chan struct{})}
	s.all[name] = o
	go func() { // ends with the operation, which the registry's own end ends
		err := run(ctx)
		over()
		s.mu.Lock()
		defer s.mu.Unlock()
		o.err, o.ended = err, time.Now()
		close(o.done)
		if errs.Of(err) == errs.StateUnavailable {
			delete(s.all, name) // nothing was done: the caller may ask for it again
		}
	}()
	return o
}

// forget drops outcomes that nobody comes back for. s.mu is held.
func (s *operations) forget(now time.Time) {
	for name, o := range s.all {
		if !o.ended.IsZero() && now.Sub(o.ended) > keepOutcome {
			delete(s.all, name)
		}
	}
}
