// Package scheduler decides, for one pool, which requests run when, where and in which batch. Gateways submit
// requests, workers grant their instances' credits, and the scheduler sends each batch to the instance that runs it.
//
// It knows models only from the bucket models. It carries request descriptors; large tensors do not pass through it.
package scheduler

import (
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/plane/schedule"
	"github.com/nereid-serving/nereid/services/scheduler/core"
	"github.com/nereid-serving/nereid/services/scheduler/decisionlog"
	"github.com/nereid-serving/nereid/services/scheduler/internal/dispatch"
	"github.com/nereid-serving/nereid/services/scheduler/internal/stats"
	"github.com/nereid-serving/nereid/services/scheduler/internal/trail"
)

// Deps are the dependencies of a scheduler.
type Deps struct {
	Bus   *bus.Bus
	Clock mono.Clock
	// Responder receives the answers to requests that do not run.
	Responder infer.Responder
	// Streams are the connections of gateways and workers; nil if these call the scheduler within one process.
	Streams Streams
	Metrics prometheus.Registerer
	Log     *zap.Logger
}

// Scheduler serves one pool, or stands by while another scheduler does. It implements [schedule.Backend] for gateways
// and workers and is safe for concurrent use.
type Scheduler struct {
	config   Config
	limits   core.Config
	deps     Deps
	stats    *stats.Set
	loop     *dispatch.Loop
	leases   *leases
	attached *attached
	costs    *costs
	metrics  *metrics
	log      *decisionlog.Writer // nil if there is none
	trail    *trail.Trail
	ready    atomic.Bool
	known    chan struct{}         // closed when the models are known
	claim    atomic.Pointer[claim] // nil while another scheduler leads
	last     uint64                // epoch of the last leadership; only lead uses it
}

var _ schedule.Backend = (*Scheduler)(nil)

// New returns a scheduler that does nothing before Run; events wait until then.
func New(c Config, deps Deps) (*Scheduler, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	latencies, ignored, err := c.latencies()
	if err != nil {
		return nil, err
	}
	if ignored != nil {
		deps.Log.Warn("the quantiles of summaries cannot be read: the default ones are used", obs.Err(ignored)...)
	}
	limits, err := c.limits()
	if err != nil {
		return nil, err
	}
	if deps.Streams == nil {
		deps.Streams = noStreams{}
	}
	set := stats.NewSet(latencies)
	shown := newMetrics(deps.Metrics)
	recorder, err := newAttached(deps.Bus, c.Pool, deps.Log)
	if err != nil {
		return nil, err
	}
	recent := trail.New(remembered)
	driven := dispatch.Deps{Clock: deps.Clock, Responder: deps.Responder, Stats: set, Members: members{recorder, deps.Streams, shown}, Recorders: []dispatch.Recorder{recent}}
	log := newDecisionLog(c, limits, deps)
	if log != nil {
		driven.Recorders = append(driven.Recorders, log)
	}
	loop, err := dispatch.New(limits, driven)
	if err != nil {
		return nil, err
	}
	recorder.recorded = loop.Recorded
	held, err := newLeases(deps.Bus, c.Pool, loop, deps.Log)
	if err != nil {
		return nil, err
	}
	kept, err := newCosts(deps.Bus, c.Pool, loop, deps.Log)
	if err != nil {
		return nil, err
	}
	deps.Metrics.MustRegister(set, loop.Ages(), loop.Sequences())
	if limits.RateLimit != nil {
		deps.Metrics.MustRegister(loop.Resources())
	}
	return &Scheduler{
		config: c, limits: limits, deps: deps, stats: set, loop: loop, leases: held, attached: recorder, costs: kept, metrics: shown, log: log, trail: recent,
		known: make(chan struct{}),
	}, nil
}

// newDecisionLog returns the log that the settings ask for, or nil.
func newDecisionLog(c Config, limits core.Config, deps Deps) *decisionlog.Writer {
	if c.DecisionLog == "" {
		return nil
	}
	return decisionlog.New(decisionlog.Config{
		Path: c.DecisionLog, MaxBytes: c.DecisionLogBytes, Log: deps.Log, Header: decisionlog.Header{
			Release: c.Version, Pool: c.Pool, Unix: time.Now().UnixNano(), Mono: deps.Clock.Now(),
			MaxRequests: limits.MaxRequests, MaxBytes: limits.MaxBytes,
			RateLimited: limits.RateLimit != nil, Resources: c.RateLimitResources, DeviceBatches: c.DeviceBatches,
		},
	})
}

// openLog opens the decision log, if there is one. The log is closed after everything else has ended.
func (s *Scheduler) openLog(ctx context.Context) (closeLog func(), err error) {
	if s.log == nil {
		return func() {}, nil
	}
	if err := s.log.Open(); err != nil {
		return nil, err
	}
	writing, end := context.WithCancel(context.WithoutCancel(ctx))
	var written sync.WaitGroup
	written.Go(func() { s.log.Run(writing) })
	return func() {
		end()
		written.Wait()
	}, nil
}

// remembered is the number of units whose decisions the scheduler remembers.
const remembered = 10_000

// explain returns the decisions about a request; nil if none are known.
func (s *Scheduler) explain(question []byte) (answer []byte) {
	var q infer.ExplainQuestion
	if json.Unmarshal(question, &q) != nil {
		return nil
	}
	id, ok := infer.ParseRequestID(q.Request)
	if !ok {
		return nil
	}
	var list []infer.ExplainedDecision
	s.loop.Between(func(*core.Core) { list = s.trail.Of(id) })
	if len(list) == 0 {
		return nil
	}
	for i := range list {
		list[i].Pool = s.config.Pool
	}
	answer, _ = json.Marshal(list) // numbers and strings only: cannot fail
	return answer
}

// members handles the loop's decisions about workers.
type members struct {
	*attached
	Streams
	metrics *metrics
}

// Gone counts a worker that has died, and allows a worker that has left to exit.
func (m members) Gone(worker uint64, died bool) {
	if died {
		m.metrics.deaths.Inc()
		m.log.Warn("worker is gone", zap.Uint64("incarnation", worker))
		return
	}
	m.Left(worker)
}

// Run stands by and serves the pool until ctx is done. Waiting requests then go back to their gateways and the pool
// to the next scheduler; new requests are refused.
func (s *Scheduler) Run(ctx context.Context) error {
	closeLog, err := s.openLog(ctx)
	if err != nil {
		return err
	}
	defer closeLog()
	if s.limits.RateLimit == nil && len(s.config.RateLimitResources) > 0 {
		s.deps.Log.Warn("resources of the rate limiter have no effect: start with --rate-limit=execution_count")
	}
	r, err := s.register(ctx)
	if err != nil {
		return lifecycle.UnlessStopped(ctx, err)
	}
	defer s.ready.Store(false)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.keep(ctx, r) })
	group.Go(func() error { return s.loop.Run(ctx) })
	group.Go(func() error { return s.watch(ctx, r) })
	group.Go(func() error { return s.leases.follow(ctx) })
	group.Go(func() error { return s.deps.Bus.Answer(ctx, bus.AskSchedulers, s.explain) })
	group.Go(func() error { return s.lead(ctx) })
	return group.Wait()
}

// keep keeps the scheduler's own key until ctx is done.
func (s *Scheduler) keep(ctx context.Context, r *registration) error {
	err := r.Run(ctx)
	if ctx.Err() != nil && err != nil {
		s.deps.Log.Warn("lease not released: it ends by itself", obs.Err(err)...)
		return nil
	}
	return err
}

// Ready reports whether the scheduler knows the models.
func (s *Scheduler) Ready() bool { return s.ready.Load() }

// Submit takes ownership of a request: it will be answered by a worker or, if it does not run, by the Responder. On
// an error the caller still owns it.
func (s *Scheduler) Submit(r *infer.Request) error { return s.loop.Submit(r) }

// Cancel says that nobody waits for a request any more. The request may be unknown.
func (s *Scheduler) Cancel(id infer.RequestID) { s.loop.Cancel(id) }

// CacheUsed counts a gateway's use of its response cache for a request.
func (s *Scheduler) CacheUsed(u infer.CacheUse) {
	if c := s.stats.Of(u.Model); c != nil {
		c.CacheUsed(u.Hit, u.Time)
	}
}

// EnsembleEnded counts a request for an ensemble whose steps a gateway has submitted.
func (s *Scheduler) EnsembleEnded(e infer.EnsembleEnd) {
	if c := s.stats.Of(e.Model); c != nil {
		c.EnsembleEnded(&e, s.deps.Clock.Now())
	}
}

// Statistics returns the counts of model versions, one for each ref: zero if the scheduler does not know it yet. It
// fails only if the scheduler does not lead.
func (s *Scheduler) Statistics(_ context.Context, refs []infer.ModelRef) ([]infer.Statistics, error) {
	if _, leads := s.Leads(); !leads {
		return nil, s.errStandby()
	}
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

// Queues returns the waiting and running requests of the pool by model, version and generation. It fails only if the
// scheduler does not lead.
func (s *Scheduler) Queues(context.Context) ([]infer.Queue, error) {
	if _, leads := s.Leads(); !leads {
		return nil, s.errStandby()
	}
	return s.loop.Queues(), nil
}

// RegisterControl registers the service for the pool's statistics and queues: see [control.RegisterPool].
func (s *Scheduler) RegisterControl(r grpc.ServiceRegistrar) {
	control.RegisterPool(r, s.config.Pool, s, func(err error) { s.deps.Log.Error("call failed", obs.Err(err)...) })
}

// Deposed says that a gateway or worker has seen the scheduler of a later epoch: this one starts over. Its lease does
// not reveal that if the other scheduler died before this one was back.
func (s *Scheduler) Deposed(by uint64) {
	if epoch, leads := s.Leads(); leads && by > epoch {
		s.depose("the pool has had a scheduler of a later epoch")
	}
}

// Attach introduces a worker.
func (s *Scheduler) Attach(worker uint64, held infer.Held, e infer.Executor) {
	s.loop.Attach(worker, held, e)
}

// Detach says that a worker is gone.
func (s *Scheduler) Detach(worker uint64) { s.loop.Detach(worker) }

// Leave says that a gateway cannot be reached. The gateway resubmits what it still waits for.
func (s *Scheduler) Leave(origin uint64) { s.loop.Leave(origin) }

// Disconnect says that a worker can no longer be reached, and returns the batches that were in flight there, with
// their requests.
func (s *Scheduler) Disconnect(worker uint64, under []*infer.Batch) {
	s.loop.Disconnect(worker, under)
}

// Return returns a batch that its worker has not started.
func (s *Scheduler) Return(b *infer.Batch, err error) {
	s.loop.Return(b, err)
	if errs.Of(err) == errs.SchedulerDeposed {
		s.depose("a worker serves another scheduler")
	}
}

// Grant adds credits of a worker's instance.
func (s *Scheduler) Grant(g infer.Grant) { s.loop.Grant(g) }

// Retire asks for an instance to be drained.
func (s *Scheduler) Retire(id infer.InstanceID) { s.loop.Retire(id) }

// InstanceFree says that an instance can accept its next batch.
func (s *Scheduler) InstanceFree(f *infer.InstanceFree) { s.loop.InstanceFree(f) }

// UnitDone ends a unit after its batch's InstanceFree.
func (s *Scheduler) UnitDone(d infer.UnitDone) { s.loop.UnitDone(d) }
