package reconcile

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/memory"
	"github.com/nereid-serving/nereid/services/worker/internal/source"
)

// Config bounds what a reconciler does.
type Config struct {
	// Loads is how many contents are loaded at the same time, at least 1.
	Loads int
	// Background is that number once what was assigned first serves, also at
	// least 1. What serves suffers from more.
	Background int
	// Retries is how often a load that fails is begun again, at once.
	Retries int
	// Linger is for how long a content serves on after its successor has
	// been reported as ready, so that requests which are on their way to it
	// arrive.
	Linger time.Duration
	// Drain is how long running and queued requests may take when the worker
	// stops.
	Drain time.Duration
}

// Deps are what a reconciler works with. All are required. Its functions are
// called from the reconciler's goroutine, except for Backend, Source,
// Lanes.Close, Retried and Failed, which are called from any.
type Deps struct {
	// Backend opens the named backend, or returns the open one.
	Backend func(name string) (backend.Backend, error)
	// Source is where files of models come from.
	Source source.Source
	Lanes  Lanes
	// Meter measures what loads take.
	Meter *memory.Meter
	// Publish takes what the worker runs of a model, after each change, ordered
	// by version and generation; nil if it is nothing any more. It must not
	// block.
	Publish func(model infer.ModelID, versions []VersionStatus)
	// Reached is told, after Publish, the desired state that was reached. It
	// must not block either.
	Reached func(Revisions)
	// Loaded is told the end of each load; err is nil if it succeeded. If it
	// failed, v may have no configuration.
	Loaded func(v backend.Version, took time.Duration, err error)
	// Retried is told of an attempt to load that failed and is not the last.
	Retried func(v backend.Version, took time.Duration, err error)
	// Failed is told of an instance or model that did not close.
	Failed func(ref infer.ModelRef, err error)
}

// Lanes runs instances.
type Lanes interface {
	// Open takes over an instance and offers it to the scheduler before it
	// returns.
	Open(Lane) infer.InstanceID
	// Close retires an instance and closes it; see instance.Executor.
	Close(ctx context.Context, id infer.InstanceID) error
}

// Lane is an instance to be run.
type Lane struct {
	Model infer.ModelRef
	Name  string
	// Device is such as cpu or gpu:0.
	Device   string
	Passive  bool
	Instance backend.Instance
}

// Reconciler owns what the worker has loaded.
type Reconciler struct {
	config  Config
	deps    Deps
	changes chan func(*Desired)
	events  chan func() // what tasks have to tell; run by the loop
	// slots and background have room for the loads that may go on: until
	// all serves, and from then on.
	slots, background chan struct{}

	// Owned by Run's goroutine.

	pending int // tasks whose event has not been run
	desired *Desired
	have    map[infer.ModelID]map[infer.ModelRef]*content // by model
	// touched are models with which something has happened since they were last
	// looked at, unsettled those with something left to do or to wait for. No
	// decision about a model depends on another, so that an event costs the
	// same however many models there are.
	touched, unsettled map[infer.ModelID]bool
	published          map[infer.ModelID][]VersionStatus // by model
	reached            Revisions
	serving            bool // all that was assigned has come to its end, and some of it is ready
	draining           bool
	stop               <-chan struct{}    // closed when the drain begins
	patience           context.Context    //nolint:containedctx // ends when the drain has taken too long
	giveUp             context.CancelFunc // ends patience
}

// New makes a reconciler. [Reconciler.Run] starts it.
func New(c Config, deps Deps) *Reconciler {
	return &Reconciler{
		config: c, deps: deps,
		changes: make(chan func(*Desired)),
		events:  make(chan func()),
		slots:   make(chan struct{}, max(c.Loads, 1)),
		desired: NewDesired(),
		have:    make(map[infer.ModelID]map[infer.ModelRef]*content),

		background: make(chan struct{}, max(c.Background, 1)),
		touched:    make(map[infer.ModelID]bool),
		unsettled:  make(map[infer.ModelID]bool),
		published:  make(map[infer.ModelID][]VersionStatus),
	}
}

// Change has the loop apply a change to what is desired. It waits for the
// loop, but not for what the change leads to, and returns at once when ctx is
// done.
func (r *Reconciler) Change(ctx context.Context, change func(*Desired)) {
	select {
	case r.changes <- change:
	case <-ctx.Done():
	}
}

// Run works until ctx is done. Then it gives up loads, unloads everything,
// and returns when all is closed or has failed to close in time.
func (r *Reconciler) Run(ctx context.Context) {
	r.stop = ctx.Done()
	r.patience, r.giveUp = context.WithCancel(context.WithoutCancel(ctx))
	defer r.giveUp()
	for ctx.Err() == nil {
		select {
		case change := <-r.changes:
			change(r.desired)
		case event := <-r.events:
			r.handle(event)
		case <-ctx.Done():
			continue
		}
		r.reconcile()
	}
	r.drain()
}

// drain unloads everything.
func (r *Reconciler) drain() {
	r.draining = true
	for model := range r.have {
		r.touched[model] = true
	}
	limit := time.AfterFunc(r.config.Drain, r.giveUp)
	defer limit.Stop()
	r.reconcile()
	for r.pending > 0 {
		r.handle(<-r.events)
		r.reconcile()
	}
}

func (r *Reconciler) handle(event func()) {
	r.pending--
	event()
}

// reconcile takes the steps that are due and publishes what has changed.
func (r *Reconciler) reconcile() {
	if !r.desired.known() && !r.draining {
		return
	}
	maps.Copy(r.touched, r.desired.changed)
	clear(r.desired.changed)
	for _, model := range slices.SortedFunc(maps.Keys(r.touched), infer.ModelID.Compare) {
		r.bring(model)
	}
	clear(r.touched)
	if len(r.unsettled) == 0 && r.desired.whole {
		r.serving = r.anyReady()
		r.reach()
	}
}

// bring takes the steps that are due of a model.
func (r *Reconciler) bring(model infer.ModelID) {
	var wants []want
	if !r.draining {
		wants = r.desired.wants(model)
	}
	steps, settled := plan(wants, r.held(model))
	for _, s := range steps {
		r.take(s)
	}
	if r.unsettled[model] = true; settled {
		delete(r.unsettled, model)
	}
	r.publish(model)
}

func (r *Reconciler) take(s step) {
	switch s.do {
	case load:
		r.load(s.want)
	case resize:
		r.resize(r.of(s.ref), s.want)
	case abandon:
		r.of(s.ref).abandon()
	case unload:
		r.unload(r.of(s.ref))
	case forget:
		r.drop(s.ref)
	}
}

func (r *Reconciler) of(ref infer.ModelRef) *content { return r.have[ref.ID()][ref] }

// keep takes a content in.
func (r *Reconciler) keep(c *content) {
	if r.have[c.ref.ID()] == nil {
		r.have[c.ref.ID()] = make(map[infer.ModelRef]*content)
	}
	r.have[c.ref.ID()][c.ref] = c
}

// drop lets a content go.
func (r *Reconciler) drop(ref infer.ModelRef) {
	if delete(r.have[ref.ID()], ref); len(r.have[ref.ID()]) == 0 {
		delete(r.have, ref.ID())
	}
}

// task runs work on a model in a goroutine of its own; the loop then runs what
// it returns, so the goroutine ends with the loop at the latest.
func (r *Reconciler) task(model infer.ModelID, work func() (then func())) {
	r.pending++
	go func() {
		then := work()
		r.events <- func() {
			r.touched[model] = true
			then()
		}
	}()
}
