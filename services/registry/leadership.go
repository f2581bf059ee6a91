package registry

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core/publish"
	"github.com/nereid-serving/nereid/services/registry/internal/repo"
	"github.com/nereid-serving/nereid/services/registry/core/catalog"
	"github.com/nereid-serving/nereid/services/registry/core/rollout"
)

// leadership is one time as the leader. All fields but requests, ended, results and underReplicated
// are owned by run's goroutine.
type leadership struct {
	buckets *buckets
	cfg     Config
	// configured are the pools of cfg.
	configured publish.Pools
	log        *zap.Logger
	scanner    *repo.Scanner
	backup     *stateBackup
	epoch      uint64
	// announce publishes the revision from which on the bucket models
	// is whole.
	announce func(ctx context.Context, revision uint64) error

	requests chan *operation // from callers
	ended    chan struct{}   // closed when the leadership ends
	results  chan func()     // what readers have found, to be run by the loop
	readers  sync.WaitGroup

	models *watchCache[*nereidv1.ModelValue]
	// firstLoads are the keys of models with several versions of which none has
	// served before, until all are ready or one has failed.
	firstLoads  map[string]bool
	swaps       map[string]bool // the keys of models on their way to a new generation
	workers     *watchCache[*nereidv1.WorkerValue]
	instances   *ownedCache[*nereidv1.InstancesValue]
	assignments *ownedCache[*nereidv1.AssignmentValue]
	gateways    *watchCache[*nereidv1.ServiceValue]
	schedulers  *watchCache[*nereidv1.ServiceValue]
	// changed is what the workers said last since the leadership began.
	changed reportRevisions

	// completer is told of the workers; awaiting are the keys of models that none could
	// complete in the last scan.
	completer *completer
	awaiting  map[string]bool
	scans     scans
	scanned   *scanResult // read and not published yet; nil if there is nothing new
	// unplaced are the keys of models whose assignments may not follow the
	// models and the workers.
	unplaced map[string]bool
	// migrating are those that are to leave workers once they are ready on others,
	// waitingForMemory those that wait for memory.
	migrating, waitingForMemory map[string]bool
	// underReplicated says why versions are on fewer workers than they should be. Others
	// read it too: what it points to is never changed.
	underReplicated atomic.Pointer[map[infer.ModelRef]string]
	// capacityRevisions are the revisions at which workers came or changed what they offer,
	// reportedAt when something was received last of a worker's part of a model.
	capacityRevisions map[string]uint64
	reportedAt        map[string]time.Time
	reserved          *reservations
	// rateLimits are those of the pools whose schedulers are known, by pool, conflicting
	// the keys of models that are refused for what other models ask of one.
	rateLimits   map[string]rateLimit
	conflicting  map[string]bool
	leaders      *watchCache[*nereidv1.LeaderValue]
	pools        *watchCache[*nereidv1.PoolValue]
	poolsWritten bool // the bucket pools has what is configured

	// restored says that the buckets hold what is in the backup, workersDeadline until when
	// workers are awaited after the store has lost it, placed which models were
	// assigned before.
	restored        bool
	workersDeadline time.Time
	restoredModels  map[string]bool

	published, announced bool
	swept                bool // no files are kept that no model needs
	// implicit are the models, by key, that were loaded for ensembles alone. A new
	// leader knows of none, and leaves them loaded.
	implicit map[string]bool
	rejected *rollout.Rejections
	// readySwaps says, by key, of models on their way since when all is ready.
	readySwaps map[string]readySince
	// draining are loaded versions that left the models, until no gateway sends
	// requests to them.
	draining    map[infer.ModelRef]drain
	operations  operations
	lostWorkers map[string]time.Time // assigned workers that are gone, and since when
	// deadWorkers have let their leases expire under this leadership. Others that are gone
	// have stopped, or were gone before it.
	deadWorkers map[string]bool
}

func newLeadership(b *buckets, cfg Config, pools publish.Pools, log *zap.Logger, scanner *repo.Scanner, c *completer, m *stateBackup, epoch uint64) *leadership {
	t := &leadership{
		buckets:           b,
		cfg:               cfg,
		configured:        pools,
		log:               log,
		scanner:           scanner,
		completer:         c,
		backup:            m,
		epoch:             epoch,
		requests:          make(chan *operation),
		ended:             make(chan struct{}),
		results:           make(chan func()),
		models:            newWatchCache[*nereidv1.ModelValue](),
		swaps:             make(map[string]bool),
		firstLoads:        make(map[string]bool),
		workers:           newWatchCache[*nereidv1.WorkerValue](),
		instances:         newOwnedCache[*nereidv1.InstancesValue](),
		assignments:       newOwnedCache[*nereidv1.AssignmentValue](),
		unplaced:          make(map[string]bool),
		restoredModels:    make(map[string]bool),
		migrating:         make(map[string]bool),
		waitingForMemory:  make(map[string]bool),
		capacityRevisions: make(map[string]uint64),
		reportedAt:        make(map[string]time.Time),
		reserved:          newReservations(),
		rateLimits:        make(map[string]rateLimit),
		conflicting:       make(map[string]bool),
		leaders:           newWatchCache[*nereidv1.LeaderValue](),
		pools:             newWatchCache[*nereidv1.PoolValue](),
		gateways:          newWatchCache[*nereidv1.ServiceValue](),
		schedulers:        newWatchCache[*nereidv1.ServiceValue](),
		scans:             scans{due: true, seen: make(map[string]catalog.Model)},
		implicit:          make(map[string]bool),
		rejected:          rollout.NewRejections(cfg.Retry, longestRetryPause),
		readySwaps:        make(map[string]readySince),
		draining:          make(map[infer.ModelRef]drain),
		operations:        newOperations(),
		lostWorkers:       make(map[string]time.Time),
		deadWorkers:       make(map[string]bool),
	}
	c.reset()
	t.underReplicated.Store(new(map[infer.ModelRef]string))
	t.assignments.mark, t.assignments.changed = revokes, t.assignmentChanged
	t.models.onChange = func(key string, v *nereidv1.ModelValue, present bool) {
		if present {
			m.setModel(key, v)
		}
		t.unplaced[key] = true
		if delete(t.swaps, key); present && v.GetPrevious() != nil {
			t.swaps[key] = true
		}
	}
	return t
}

// run keeps the buckets in step until ctx ends or a value of a newer release
// is met, which it must not replace.
func (l *leadership) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer l.readers.Wait()
	defer cancel()
	defer close(l.ended)
	in := l.watch(ctx)
	wake := time.NewTimer(l.cfg.WorkerGrace)
	defer wake.Stop()
	for {
		news, err := l.next(ctx, in, wake.C)
		if err != nil {
			return err
		}
		if news && l.ready() {
			wake.Reset(l.step(ctx, time.Now()))
		}
	}
}

// inputs are what the loop receives from the buckets.
type inputs struct {
	models      <-chan bus.Event[*nereidv1.ModelValue]
	workers     <-chan bus.Event[*nereidv1.WorkerValue]
	instances   <-chan bus.Event[*nereidv1.InstancesValue]
	assignments <-chan bus.Event[*nereidv1.AssignmentValue]
	pools       <-chan bus.Event[*nereidv1.PoolValue]
	gateways    <-chan bus.Event[*nereidv1.ServiceValue]
	schedulers  <-chan bus.Event[*nereidv1.ServiceValue]
	leaders     <-chan bus.Event[*nereidv1.LeaderValue]
}

func (l *leadership) watch(ctx context.Context) inputs {
	return inputs{
		models: l.buckets.models.Watch(ctx), workers: l.buckets.workers.Watch(ctx),
		instances: l.buckets.instances.Watch(ctx), assignments: l.buckets.assignments.Watch(ctx), pools: l.buckets.pools.Watch(ctx),
		gateways: l.buckets.gateways.Watch(ctx), schedulers: l.buckets.schedulers.Watch(ctx),
		leaders: l.buckets.leaders.Watch(ctx),
	}
}

// next takes one event in and reports whether there is anything to do.
func (l *leadership) next(ctx context.Context, in inputs, wake <-chan time.Time) (news bool, err error) {
	news = true
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case e, ok := <-in.models:
		news, err = receive(l.models, e, ok, e.Value.GetSchema())
	case e, ok := <-in.workers:
		news, err = l.workerChanged(e, ok)
	case e, ok := <-in.instances:
		news, err = l.instancesChanged(e, ok)
	case e, ok := <-in.assignments:
		news, err = l.receiveAssignment(e, ok)
	case e, ok := <-in.pools:
		news, err = receive(l.pools, e, ok, e.Value.GetSchema())
		l.poolsWritten = l.poolsWritten && !news
	case e, ok := <-in.gateways:
		news, err = receive(l.gateways, e, ok, e.Value.GetSchema())
		news = news && (l.waits() || e.Kind == bus.EventCaughtUp)
		maps.Copy(l.unplaced, l.migrating)
	case e, ok := <-in.schedulers:
		news, err = receive(l.schedulers, e, ok, e.Value.GetSchema())
		news = news && (l.waits() || e.Kind == bus.EventCaughtUp)
	case e, ok := <-in.leaders:
		news, err = l.leaderChanged(e, ok)
	case o := <-l.requests:
		l.startOperation(ctx, o)
	case then := <-l.results:
		then()
	case <-wake:
	}
	return news, err
}

// ready reports whether all buckets are known.
func (l *leadership) ready() bool {
	return l.models.caughtUp && l.pools.caughtUp && l.workers.caughtUp && l.instances.caughtUp && l.assignments.caughtUp &&
		l.gateways.caughtUp && l.schedulers.caughtUp && l.leaders.caughtUp
}

// errWatchEnded says that the bus is closing.
var errWatchEnded = errors.New("the watch ended")

func receive[T any](m *watchCache[T], e bus.Event[T], open bool, schema uint32) (bool, error) {
	if !open {
		return false, errWatchEnded
	}
	if schema > nereidv1.Schema {
		return false, errs.New(errs.StateUnavailable,
			"the value of %q has schema %d, newer than %d: a newer release leads; upgrade this one", e.Key, schema, nereidv1.Schema)
	}
	return m.apply(e), nil
}

// waits reports whether anything depends on what other services say.
func (l *leadership) waits() bool {
	return len(l.operations.running) > 0 || len(l.draining) > 0 || len(l.migrating) > 0 || len(l.firstLoads) > 0 || l.swapping()
}

// swapping reports whether any model is on its way to a new generation.
func (l *leadership) swapping() bool { return len(l.swaps) > 0 }
