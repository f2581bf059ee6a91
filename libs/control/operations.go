package control

import (
	"context"
	"sync"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
)

// keepOutcome is for how long a finished operation is kept for a caller whose
// connection broke.
const keepOutcome = time.Minute

// operations are those in flight and those that finished a short while ago, by
// the names that their callers chose.
type operations struct {
	mu  sync.Mutex
	all map[string]*operation // guarded by mu
}

// operation is one of them; err and finished are valid after done is closed.
type operation struct {
	done     chan struct{}
	err      error
	finished time.Time
}

func newOperations() *operations { return &operations{all: make(map[string]*operation)} }

// do runs an operation, or waits for the one of that name. It returns the
// outcome, or ctx's error while the operation goes on. It calls release once:
// after run has returned, or at once if run is not called.
func (s *operations) do(ctx context.Context, name string, run func(context.Context) error, release func()) error {
	if name == "" {
		defer release()
		return run(ctx)
	}
	o := s.join(context.WithoutCancel(ctx), name, run, release)
	select {
	case <-o.done:
		return o.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *operations) join(ctx context.Context, name string, run func(context.Context) error, release func()) *operation {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expireLocked(time.Now())
	if o := s.all[name]; o != nil {
		release()
		return o
	}
	o := &operation{done: make(chan struct{})}
	s.all[name] = o
	go func() { // ends with the operation, which the registry's own end ends
		err := run(ctx)
		release()
		s.mu.Lock()
		defer s.mu.Unlock()
		o.err, o.finished = err, time.Now()
		close(o.done)
		if errs.Of(err) == errs.StateUnavailable {
			delete(s.all, name) // it did nothing: the caller may start it again
		}
	}()
	return o
}

// expireLocked deletes outcomes that no caller comes back for.
func (s *operations) expireLocked(now time.Time) {
	for name, o := range s.all {
		if !o.finished.IsZero() && now.Sub(o.finished) > keepOutcome {
			delete(s.all, name)
		}
	}
}
