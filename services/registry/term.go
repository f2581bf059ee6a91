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
	"github.com/nereid-serving/nereid/services/registry/internal/repo"
	"github.com/nereid-serving/nereid/services/registry/internal/snapshot"
)

// term is one time as the leader. All fields but asked, over, results and short
// are owned by run's goroutine.
type term struct {
	buckets *buckets
	cfg     Config
	log     *zap.Logger
	scanner *repo.Scanner
	memory  *memory
	epoch   uint64
	// announce tells the world the revision from which on the bucket models
	// is whole.
	announce func(ctx context.Context, revision uint64) error

	asked   chan *operation // from callers
	over    chan struct{}   // closed when the term ends
	results chan func()     // what readers have found, to be run by the loop
	readers sync.WaitGroup

	models      *mirror[*nereidv1.ModelValue]
	swaps       map[string]bool // the keys of models on their way to a new content
	workers     *mirror[*nereidv1.WorkerValue]
	instances   *grid[*nereidv1.InstancesValue]
	assignments *grid[*nereidv1.AssignmentValue]
	gateways    *mirror[*nereidv1.ServiceValue]
	schedulers  *mirror[*nereidv1.ServiceValue]
	// changed is what the workers said last since the term began.
	changed moment

	scans scans
	found *finding // read and not published yet; nil if there is nothing new
	// unplaced are the keys of models whose assignments may not follow the
	// models and the workers.
	unplaced map[string]bool
	// moving are those that are to leave workers once they are ready on others,
	// starved those that wait for memory.
	moving, starved map[string]bool
	// short says why versions are on fewer workers than they should be. Others
	// read it too: what it points to is never changed.
	short atomic.Pointer[map[infer.ModelRef]string]
	// offers are the revisions at which workers came or changed what they offer,
	// heardOf when something was heard last of a worker's part of a model.
	offers       map[string]uint64
	heardOf      map[string]time.Time
	account      *account
	pools        *mirror[*nereidv1.PoolValue]
	poolsWritten bool // the bucket pools has what is configured

	// restored says that the buckets hold what is remembered, patience until when
	// workers are awaited after the store has lost it, placed which models were
	// assigned before.
	restored bool
	patience time.Time
	placed   map[string]bool

	published, announced bool
	swept                bool // no files are kept for nobody
	// refused holds, by key, the value that failed last: the same content is
	// not tried again unasked.
	refused map[string]*nereidv1.ModelValue
	// loaded says, by key, of models on their way since when all is ready.
	loaded map[string]readiness
	// draining are contents that left the models, until nobody sends requests
	// to them.
	draining   map[infer.ModelRef]drain
	operations map[string]*operation // by the model's key
	vanished   map[string]time.Time  // assigned workers that are gone, and since when
}

func newTerm(b *buckets, cfg Config, log *zap.Logger, scanner *repo.Scanner, m *memory, epoch uint64) *term {
	t := &term{
		buckets:     b,
		cfg:         cfg,
		log:         log,
		scanner:     scanner,
		memory:      m,
		epoch:       epoch,
		asked:       make(chan *operation),
		over:        make(chan struct{}),
		results:     make(chan func()),
		models:      newMirror[*nereidv1.ModelValue](),
		swaps:       make(map[string]bool),
		workers:     newMirror[*nereidv1.WorkerValue](),
		instances:   newGrid[*nereidv1.InstancesValue](),
		assignments: newGrid[*nereidv1.AssignmentValue](),
		unplaced:    make(map[string]bool),
		placed:      make(map[string]bool),
		moving:      make(map[string]bool),
		starved:     make(map[string]bool),
		offers:      make(map[string]uint64),
		heardOf:     make(map[string]time.Time),
		account:     newAccount(),
		pools:       newMirror[*nereidv1.PoolValue](),
		gateways:    newMirror[*nereidv1.ServiceValue](),
		schedulers:  newMirror[*nereidv1.ServiceValue](),
		scans:       scans{due: true, seen: make(map[string]snapshot.Model)},
		refused:     make(map[string]*nereidv1.ModelValue),
		loaded:      make(map[string]readiness),
		draining:    make(map[infer.ModelRef]drain),
		operations:  make(map[string]*operation),
		vanished:    make(map[string]time.Time),
	}
	t.short.Store(new(map[infer.ModelRef]string))
	t.assignments.mark, t.assignments.then = takenBack, t.keepAccount
	t.models.kept = func(key string, v *nereidv1.ModelValue, present bool) {
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
func (t *term) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer t.readers.Wait()
	defer cancel()
	defer close(t.over)
	in := t.watch(ctx)
	wake := time.NewTimer(t.cfg.WorkerGrace)
	defer wake.Stop()
	for {
		news, err := t.next(ctx, in, wake.C)
		if err != nil {
			return err
		}
		if news && t.ready() {
			wake.Reset(t.step(ctx, time.Now()))
		}
	}
}

// inputs are what the loop hears of the buckets.
type inputs struct {
	models      <-chan bus.Event[*nereidv1.ModelValue]
	workers     <-chan bus.Event[*nereidv1.WorkerValue]
	instances   <-chan bus.Event[*nereidv1.InstancesValue]
	assignments <-chan bus.Event[*nereidv1.AssignmentValue]
	pools       <-chan bus.Event[*nereidv1.PoolValue]
	gateways    <-chan bus.Event[*nereidv1.ServiceValue]
	schedulers  <-chan bus.Event[*nereidv1.ServiceValue]
}

func (t *term) watch(ctx context.Context) inputs {
	return inputs{
		models: t.buckets.models.Watch(ctx), workers: t.buckets.workers.Watch(ctx),
		instances: t.buckets.instances.Watch(ctx), assignments: t.buckets.assignments.Watch(ctx), pools: t.buckets.pools.Watch(ctx),
		gateways: t.buckets.gateways.Watch(ctx), schedulers: t.buckets.schedulers.Watch(ctx),
	}
}

// next takes one event in and reports whether there is anything to do.
func (t *term) next(ctx context.Context, in inputs, wake <-chan time.Time) (news bool, err error) {
	news = true
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case e, ok := <-in.models:
		news, err = take(t.models, e, ok, e.Value.GetSchema())
	case e, ok := <-in.workers:
		news, err = t.takeWorker(e, ok)
	case e, ok := <-in.instances:
		news, err = t.takeInstances(e, ok)
	case e, ok := <-in.assignments:
		news, err = t.takeAssignment(e, ok)
	case e, ok := <-in.pools:
		news, err = take(t.pools, e, ok, e.Value.GetSchema())
		t.poolsWritten = t.poolsWritten && !news
	case e, ok := <-in.gateways:
		news, err = take(t.gateways, e, ok, e.Value.GetSchema())
		news = news && (t.waits() || e.Kind == bus.EventCaughtUp)
		maps.Copy(t.unplaced, t.moving)
	case e, ok := <-in.schedulers:
		news, err = take(t.schedulers, e, ok, e.Value.GetSchema())
		news = news && (t.waits() || e.Kind == bus.EventCaughtUp)
	case o := <-t.asked:
		t.begin(ctx, o)
	case then := <-t.results:
		then()
	case <-wake:
	}
	return news, err
}

// ready reports whether all buckets are known.
func (t *term) ready() bool {
	return t.models.caughtUp && t.pools.caughtUp && t.workers.caughtUp && t.instances.caughtUp && t.assignments.caughtUp &&
		t.gateways.caughtUp && t.schedulers.caughtUp
}

// errWatchEnded says that the bus is closing.
var errWatchEnded = errors.New("the watch ended")

func take[T any](m *mirror[T], e bus.Event[T], open bool, schema uint32) (bool, error) {
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
func (t *term) waits() bool {
	return len(t.operations) > 0 || len(t.draining) > 0 || len(t.moving) > 0 || t.swapping()
}

// swapping reports whether any model is on its way to a new content.
func (t *term) swapping() bool { return len(t.swaps) > 0 }
