package worker

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/nereid-serving/nereid/libs/blob"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/procs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/batches"
	cuda "github.com/nereid-serving/nereid/services/worker/internal/device"
	"github.com/nereid-serving/nereid/services/worker/internal/fetch"
	"github.com/nereid-serving/nereid/services/worker/internal/instance"
	"github.com/nereid-serving/nereid/services/worker/internal/ledger"
	"github.com/nereid-serving/nereid/services/worker/internal/memory"
	"github.com/nereid-serving/nereid/services/worker/internal/reconcile"
	"github.com/nereid-serving/nereid/services/worker/internal/sequence"
)

// Worker runs models on one device.
type Worker struct {
	config  Config
	deps    Deps
	metrics *metrics
	log     *ledger.Log // of executions; nil if there is none
	fetcher *fetch.Fetcher
	engines *openBackends
	threads *procs.Procs
	device  *device
	cuda    *cuda.CUDA // for memory that clients share
	// fault receives the reason why the device can run nothing any more.
	fault chan error

	labels       map[string]string
	memoryBudget uint64 // in bytes; 0 is no bound
	batchMemory  uint64 // the same

	modelsKnown, assignmentKnown atomic.Bool
	// leaving says that the worker's models are wanted elsewhere, stopping that the worker ends in any case.
	leaving, stopping atomic.Bool
	steady            atomic.Bool // it has run for a while
}

// New returns a worker and registers its metrics, but opens and starts nothing. Errors have the reason
// config_invalid, except for metrics that are already registered.
func New(c Config, d Deps) (*Worker, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if err := d.validate(); err != nil {
		return nil, err
	}
	if d.Log == nil {
		d.Log = zap.NewNop()
	}
	var pinned *backend.PinnedMemory // only for GPUs
	if c.Device.Kind == modelconfig.KindGPU {
		pinned = backend.NewPinnedMemory(c.PinnedMemory)
	}
	m, err := newMetrics(d.Metrics, d.Pool, pinned)
	if err != nil {
		return nil, err
	}
	fetcher, err := fetch.New(c.Cache.fetches(), fetch.ByScheme{
		Artifacts: fetch.Artifacts{Objects: d.Bus.Objects()}, Stores: fetch.Stores{Stores: blob.New(blob.Options{})},
	}, d.Log, d.Metrics)
	if err != nil {
		return nil, err
	}
	threads := procs.New(c.Cores)
	w := &Worker{config: c, deps: d, metrics: m, fetcher: fetcher, threads: threads, fault: make(chan error, 1)}
	w.engines = newBackends(c, d, threads, pinned, w.deviceFailed)
	w.labels, _ = c.labels() // validated, like the sizes
	w.device = openDevice(c.Device, nvml.New(), d.Log)
	w.cuda = openCUDA(c)
	w.memoryBudget = w.device.budget(c)
	if d.Metrics != nil && c.Device.Kind == modelconfig.KindGPU {
		if err := d.Metrics.Register(w.device); err != nil {
			return nil, err
		}
	}
	w.batchMemory, _ = c.batchMemory()
	m.batchMemory.Set(float64(w.batchMemory))
	if c.ExecutionLog != "" {
		w.log = ledger.NewLog(c.ExecutionLog, c.ID)
	}
	if w.deps.Batches == nil {
		w.deps.Batches = batches.New()
	}
	return w, nil
}

// Ready reports whether the worker knows what it should run and is not draining. The value of its lease says which
// models are ready.
func (w *Worker) Ready() bool { return w.modelsKnown.Load() && w.assignmentKnown.Load() }

// deviceFailed ends the process, and whoever started it starts it again: until then nothing runs on its device.
func (w *Worker) deviceFailed(err error) {
	select {
	case w.fault <- err:
		w.deps.Log.Error("the device has failed: the worker ends", obs.Err(err)...)
	default: // it ends already
	}
}

// state is what the readiness endpoint reports, or that the worker is stopping.
func (w *Worker) state() nereidv1.State {
	switch {
	case w.stopping.Load():
		return nereidv1.State_STATE_UNLOADING
	case w.Ready():
		return nereidv1.State_STATE_READY
	}
	return nereidv1.State_STATE_LOADING
}

// steadyAfter is how long a worker must run before the exits of its earlier incarnations no longer count, as on its
// node.
const steadyAfter = time.Minute

// Run acquires the worker's lease, under whose epoch it attaches to the scheduler, and runs what it is assigned until
// ctx is done. Then it retires its instances, gives them at most the drain timeout to finish, closes its models,
// detaches, releases the lease and returns nil. If its key cannot be written or another worker has acquired it, Run
// does the same and returns the cause. Run must be called once.
func (w *Worker) Run(ctx context.Context) (err error) {
	defer w.device.close()
	defer w.engines.stop()
	if err := w.log.Open(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.log.Close()) }()
	lease, err := w.register(ctx)
	if err != nil {
		return lifecycle.UnlessStopped(ctx, err)
	}
	// While the instances drain, the lease is retained and reports their state.
	late, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()
	mailbox := newMailbox()
	keeper, late := errgroup.WithContext(late)
	keeper.Go(func() error { return lease.Run(late) })
	keeper.Go(func() error {
		w.threads.Run(late)
		return nil
	})
	keeper.Go(func() error { return w.report(late, lease, mailbox) })
	keeper.Go(func() error {
		w.device.watch(late, mailbox.notify)
		return nil
	})
	keeper.Go(func() error {
		select {
		case err := <-w.fault:
			return err
		case <-late.Done():
			return nil
		}
	})
	steady := time.AfterFunc(steadyAfter, func() {
		w.steady.Store(true)
		mailbox.notify()
	})
	defer steady.Stop()
	serving, cancel := context.WithCancel(late)
	defer cancel()
	started := time.Now()
	var drains atomic.Int64 // when the drain started, after started
	unhook := context.AfterFunc(ctx, func() {
		w.stopping.Store(true)
		mailbox.notify()
		w.leave(late, lease, mailbox)
		drains.Store(int64(time.Since(started)))
		cancel()
	})
	defer unhook()
	err = w.serve(serving, lease.Epoch(), mailbox)
	w.deliver(late, time.Since(started)-time.Duration(drains.Load()))
	w.deps.Scheduler.Detach(lease.Epoch())
	release()
	if kept := keeper.Wait(); kept != nil && ctx.Err() == nil {
		return kept
	} else if kept != nil {
		w.deps.Log.Warn("lease not released: it ends by itself", obs.Err(kept)...)
	}
	return err
}

// settleTimeout is the minimum time that others have to fetch what a stopping worker has for them, even if its
// requests have used up the drain timeout.
const settleTimeout = 5 * time.Second

// deliver waits until others have fetched what the worker has for them, for at most the rest of the drain timeout.
func (w *Worker) deliver(ctx context.Context, drained time.Duration) {
	if w.deps.Settle == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, max(w.config.DrainTimeout-drained, settleTimeout))
	defer cancel()
	w.deps.Settle(ctx)
}

// serve runs what is assigned until ctx is done and everything is closed.
func (w *Worker) serve(ctx context.Context, epoch uint64, out *mailbox) error {
	for _, name := range w.config.unusedSettings() {
		w.deps.Log.Warn("settings of a backend that is not there", zap.String("backend", name))
	}
	executor := instance.NewExecutor(epoch, instance.Deps{
		Scheduler: w.deps.Scheduler, Responder: w.deps.Responder, Calls: w.deps.Calls, Clock: w.deps.Clock,
		Batches: w.deps.Batches, Log: w.log, Fresh: w.deps.MayStart, Pipelined: w.deps.PipelinedBatches, Panicked: w.panicked, Leaving: w.stopping.Load,
	})
	w.deps.Scheduler.Attach(epoch, infer.Held{Memory: int64(w.batchMemory)}, executor)
	open := &instances{executor: executor, metrics: w.metrics}
	defer func() {
		if !open.stuck.Load() { // otherwise a backend is in use: it is left to the end of the process
			w.engines.close(w.deps.Log)
		}
	}()
	live := &liveModels{models: make(map[infer.ModelID]struct{})}
	r := reconcile.New(
		reconcile.Config{
			Loads: w.config.LoadConcurrency, EngineLoads: w.config.cores() / 2, Retries: w.config.LoadRetries,
			Linger: w.config.ReloadLinger, Drain: w.config.DrainTimeout,
		},
		reconcile.Deps{
			Backend: w.engines.backend,
			Sequences: func(v backend.Version) (*sequence.Model, error) {
				return sequence.Prepare(v, sequence.Deps{Pool: w.deps.Pool, Held: w.metrics.states(v), Clock: w.deps.Clock})
			},
			Source:    w.source(),
			Instances: open, Calls: w.deps.Calls,
			Meter: memory.NewMeter(w.device.used),
			Publish: func(model infer.ModelID, versions []reconcile.VersionStatus) {
				w.metrics.show(model, versions)
				live.show(model, len(versions) > 0)
				out.put(model, versions)
			},
			Reached: out.reach,
			Loaded:  w.loaded, Retried: w.retried, Failed: w.failed,
		})
	group, ctx := errgroup.WithContext(ctx)
	ended := make(chan struct{})
	group.Go(func() error {
		w.announceEnd(ctx, live, ended)
		return nil
	})
	group.Go(func() error {
		defer close(ended)
		for _, model := range r.Run(ctx) {
			open.stuck.Store(true)
			w.deps.Log.Error("stopped while a backend is still at work on a model", zap.Stringer("model", model))
		}
		return nil
	})
	group.Go(func() error { return w.followModels(ctx, r, out.notify) })
	group.Go(func() error { return w.followAssignments(ctx, r, out.notify) })
	return group.Wait()
}

func (w *Worker) panicked(p instance.Panic) {
	w.deps.Log.Error("backend panicked", append(obs.Model(p.Model),
		obs.Instance(p.Instance), zap.String("name", p.Name), zap.Any("panic", p.Value), zap.ByteString("stack", p.Stack))...)
}
