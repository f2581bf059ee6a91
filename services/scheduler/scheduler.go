// Package scheduler decides, for one pool, who runs when, where and with
// whom. Gateways submit requests, workers offer their instances' credits, and
// the scheduler sends each batch to the instance that will run it.
//
// What it knows of models comes from the bucket models alone. It carries
// descriptors; the bytes of tensors stay where they are.
package scheduler

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/scheduler/internal/core"
	"github.com/nereid-serving/nereid/services/scheduler/internal/dispatch"
	"github.com/nereid-serving/nereid/services/scheduler/internal/stats"
)

// Deps are what a scheduler works with.
type Deps struct {
	Bus   *bus.Bus
	Clock mono.Clock
	// Responder takes the answers of requests that do not run.
	Responder infer.Responder
	Metrics   prometheus.Registerer
	Log       *zap.Logger
}

// Scheduler serves one pool. It is an [infer.Scheduler] for workers and safe
// for concurrent use.
type Scheduler struct {
	config Config
	deps   Deps
	stats  *stats.Set
	loop   *dispatch.Loop
	ready  atomic.Bool
}

var _ infer.Scheduler = (*Scheduler)(nil)

// New makes a scheduler that does nothing before Run; what it is told until
// then waits.
func New(c Config, deps Deps) (*Scheduler, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	set := stats.NewSet(c.Latencies)
	limits := core.Limits{Requests: c.MaxQueuedRequests, Bytes: c.MaxQueuedBytes}
	loop, err := dispatch.New(limits, dispatch.Deps{Clock: deps.Clock, Responder: deps.Responder, Stats: set})
	if err != nil {
		return nil, err
	}
	deps.Metrics.MustRegister(set, loop.Ages())
	return &Scheduler{config: c, deps: deps, stats: set, loop: loop}, nil
}

// Run serves the pool until ctx is done. Requests that wait then are still
// taken by the workers that are there; new ones are refused.
func (s *Scheduler) Run(ctx context.Context) error {
	r, err := s.register(ctx)
	if err != nil {
		return err
	}
	s.deps.Log.Info("scheduler serves its pool", zap.String("pool", s.config.Pool), zap.Uint64("epoch", r.Epoch()))
	defer s.ready.Store(false)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.Run(ctx) })
	group.Go(func() error { return s.loop.Run(ctx, r.Epoch()) })
	group.Go(func() error { return s.watch(ctx, r) })
	return group.Wait()
}

// Ready reports whether the scheduler knows the models.
func (s *Scheduler) Ready() bool { return s.ready.Load() }

// Submit takes a request over: it will be answered through a worker or, if it
// does not run, through the Responder. On an error the caller still owns it.
func (s *Scheduler) Submit(r *infer.Request) error { return s.loop.Submit(r) }

// Cancel says that nobody waits for a request any more. It may be unknown.
func (s *Scheduler) Cancel(id infer.RequestID) { s.loop.Cancel(id) }

// Statistics returns the counts of model versions, one for each ref: zero if
// the scheduler does not know it yet. It never fails.
func (s *Scheduler) Statistics(_ context.Context, refs []infer.ModelRef) ([]infer.Statistics, error) {
	wallNow, now := time.Now(), s.deps.Clock.Now()
	wall := func(t mono.Time) time.Time { return wallNow.Add(t.Sub(now)) }
	list := make([]infer.Statistics, len(refs))
	for i, ref := range refs {
		if c := s.stats.Of(ref); c != nil {
			list[i] = c.Statistics(wall)
		}
	}
	return list, nil
}

// Attach introduces a worker.
func (s *Scheduler) Attach(worker uint64, e infer.Executor) { s.loop.Attach(worker, e) }

// Detach says that a worker is gone.
func (s *Scheduler) Detach(worker uint64) { s.loop.Detach(worker) }

// Grant offers credits of a worker's instance.
func (s *Scheduler) Grant(g infer.Grant) { s.loop.Grant(g) }

// Retire asks for an instance to be drained.
func (s *Scheduler) Retire(id infer.InstanceID) { s.loop.Retire(id) }

// Complete ends an order.
func (s *Scheduler) Complete(c *infer.Completion) { s.loop.Complete(c) }
