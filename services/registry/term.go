package registry

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/internal/repo"
	"github.com/nereid-serving/nereid/services/registry/internal/snapshot"
)

// term is one time as the leader. All fields but asked, over and results are
// owned by run's goroutine.
type term struct {
	buckets *buckets
	cfg     Config
	log     *zap.Logger
	scanner *repo.Scanner
	epoch   uint64
	// announce tells the world the revision from which on the bucket models
	// is whole.
	announce func(ctx context.Context, revision uint64) error

	asked   chan *operation // from callers
	over    chan struct{}   // closed when the term ends
	results chan func()     // what readers have found, to be run by the loop
	readers sync.WaitGroup

	models      *mirror[*nereidv1.ModelValue] // marked are those on their way to a new content
	workers     *mirror[*nereidv1.WorkerValue]
	assignments *mirror[*nereidv1.AssignmentValue]
	gateways    *mirror[*nereidv1.ServiceValue]
	schedulers  *mirror[*nereidv1.ServiceValue]
	// workersChanged is the revision of the last change of a worker since the
	// term began. The revision of the bucket would not do: a renewal of a lease
	// raises it, of which no gateway is told.
	workersChanged uint64

	scans  scans
	found  *finding // read and not published yet; nil if there is nothing new
	placed bool     // the assignments follow the models and the workers

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

func newTerm(b *buckets, cfg Config, log *zap.Logger, scanner *repo.Scanner, epoch uint64) *term {
	models := newMirror[*nereidv1.ModelValue]()
	models.mark = func(v *nereidv1.ModelValue) bool { return v.GetPrevious() != nil }
	return &term{
		buckets:     b,
		cfg:         cfg,
		log:         log,
		scanner:     scanner,
		epoch:       epoch,
		asked:       make(chan *operation),
		over:        make(chan struct{}),
		results:     make(chan func()),
		models:      models,
		workers:     newMirror[*nereidv1.WorkerValue](),
		assignments: newMirror[*nereidv1.AssignmentValue](),
		gateways:    newMirror[*nereidv1.ServiceValue](),
		schedulers:  newMirror[*nereidv1.ServiceValue](),
		scans:       scans{due: true, seen: make(map[string]snapshot.Model)},
		refused:     make(map[string]*nereidv1.ModelValue),
		loaded:      make(map[string]readiness),
		draining:    make(map[infer.ModelRef]drain),
		operations:  make(map[string]*operation),
		vanished:    make(map[string]time.Time),
	}
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
	assignments <-chan bus.Event[*nereidv1.AssignmentValue]
	gateways    <-chan bus.Event[*nereidv1.ServiceValue]
	schedulers  <-chan bus.Event[*nereidv1.ServiceValue]
}

func (t *term) watch(ctx context.Context) inputs {
	return inputs{
		models: t.buckets.models.Watch(ctx), workers: t.buckets.workers.Watch(ctx), assignments: t.buckets.assignments.Watch(ctx),
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
		t.placed = t.placed && !news
	case e, ok := <-in.workers:
		news, err = t.takeWorker(e, ok)
	case e, ok := <-in.assignments:
		news, err = take(t.assignments, e, ok, e.Value.GetSchema())
		t.placed = t.placed && !news
	case e, ok := <-in.gateways:
		news, err = take(t.gateways, e, ok, e.Value.GetSchema())
		news = news && (t.waits() || e.Kind == bus.EventCaughtUp)
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
	return t.models.caughtUp && t.workers.caughtUp && t.assignments.caughtUp && t.gateways.caughtUp && t.schedulers.caughtUp
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

// takeWorker tells a worker that comes, goes or changes its device, for which
// assignments are made, from what it says of its instances, which matters only
// while somebody waits for them.
func (t *term) takeWorker(e bus.Event[*nereidv1.WorkerValue], open bool) (bool, error) {
	before, known := t.workers.entries[e.Key]
	started := t.workers.caughtUp
	news, err := take(t.workers, e, open, e.Value.GetSchema())
	if news && started && e.Kind != bus.EventCaughtUp {
		t.workersChanged = max(t.workersChanged, e.Revision)
	}
	if news && e.Kind == bus.EventPut && known && sameDevice(before.Value, e.Value) {
		return t.waits(), err
	}
	t.placed = t.placed && !news
	return news, err
}

func sameDevice(a, b *nereidv1.WorkerValue) bool {
	return a.GetDevice().GetKind() == b.GetDevice().GetKind() && a.GetDevice().GetNumber() == b.GetDevice().GetNumber()
}

// waits reports whether anything depends on what other services say.
func (t *term) waits() bool {
	return len(t.operations) > 0 || len(t.draining) > 0 || t.swapping()
}

// swapping reports whether any model is on its way to a new content.
func (t *term) swapping() bool { return len(t.models.marked) > 0 }
