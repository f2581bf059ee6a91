package reconcile

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/memory"
	"github.com/nereid-serving/nereid/services/worker/internal/sequence"
	"github.com/nereid-serving/nereid/services/worker/internal/source"
)

// Config bounds what a reconciler does.
type Config struct {
	// Loads is how many versions are loaded at the same time, at least 1.
	Loads int
	// EngineLoads is how many of those are loaded by engines in this process once what was
	// assigned first serves, at least 1: requests suffer from each.
	EngineLoads int
	// Retries is how often a load that fails is begun again, at once.
	Retries int
	// Linger is for how long a generation serves on after its successor has
	// been reported as ready, so that requests which are on their way to it
	// arrive.
	Linger time.Duration
	// Drain is how long running and queued requests may take when the worker
	// stops.
	Drain time.Duration
}

// Deps are what a reconciler works with. All are required. Its functions are
// called from the reconciler's goroutine, except for Backend, Sequences, Source,
// Instances.Close, Retried and Failed, which are called from any.
type Deps struct {
	// Backend opens the named backend, or returns the open one.
	Backend func(name string) (backend.Backend, error)
	// Sequences prepares what the instances of a version share of sequences: nil if
	// it batches none.
	Sequences func(v backend.Version) (*sequence.Model, error)
	// Source is where files of models come from.
	Source    source.Source
	Instances Instances
	// Calls takes the calls that models make while they warm up.
	Calls infer.Caller
	// Meter measures what loads take.
	Meter *memory.Meter
	// Publish takes what the worker runs of a model, after each change, ordered
	// by version and generation; nil if it is nothing any more. It must not
	// block.
	Publish func(model infer.ModelID, versions []VersionStatus)
	// Reached takes, after Publish, the desired state that was reached. It must
	// not block either.
	Reached func(Revisions)
	// Loaded takes the end of each load; err is nil if it succeeded. If it
	// failed, v may have no configuration.
	Loaded func(v backend.Version, took time.Duration, err error)
	// Retried takes an attempt to load that failed and is not the last.
	Retried func(v backend.Version, took time.Duration, err error)
	// Failed takes an instance or model that did not close.
	Failed func(ref infer.ModelRef, err error)
}

// Instances runs instances.
type Instances interface {
	// Open takes over an instance and offers it to the scheduler before it
	// returns.
	Open(InstanceSpec) infer.InstanceID
	// Close retires an instance and closes it; see instance.Executor.
	Close(ctx context.Context, id infer.InstanceID) error
}

// InstanceSpec is an instance to be run.
type InstanceSpec struct {
	Model infer.ModelRef
	Name  string
	// Device is such as cpu or gpu:0.
	Device   string
	Passive  bool
	Instance backend.Instance
	// Warmed is what the executions took that warmed it up.
	Warmed []infer.Cost
	// Iterative has requests run again: see [backend.Batch].
	Iterative bool
	// Unready is told why the instance is away or not ready, and with nil that it is ready.
	Unready func(id infer.InstanceID, cause error)
}

// Reconciler owns what the worker has loaded.
type Reconciler struct {
	config  Config
	deps    Deps
	changes chan func(*Desired)
	events  chan func() // what tasks have to tell; run by the loop
	// absences are told by instances.
	absences *absences
	// loads bounds all loads, engineLoads those of engines while versions serve.
	loads, engineLoads semaphore

	// Owned by Run's goroutine.

	pending int                   // tasks whose event has not been run
	tasks   map[infer.ModelID]int // those of a model
	desired *Desired
	have    map[infer.ModelID]map[infer.ModelRef]*loadedVersion // by model
	// touched are models that have had an event since they were last looked at,
	// unsettled those with something left to do or to wait for. No
	// decision about a model depends on another, so that an event costs the
	// same however many models there are.
	touched, unsettled map[infer.ModelID]bool
	published          map[infer.ModelID][]VersionStatus // by model
	reached            Revisions
	serving            bool // all that was assigned has come to its end, and some of it is ready
	draining           bool
	stop               <-chan struct{}    // closed when the drain begins
	ended              chan struct{}      // closed when the loop has ended
	patience           context.Context    //nolint:containedctx // ends when the drain has taken too long
	giveUp             context.CancelFunc // ends patience
}

// New makes a reconciler. [Reconciler.Run] starts it.
func New(c Config, deps Deps) *Reconciler {
	return &Reconciler{
		config: c, deps: deps,
		changes:  make(chan func(*Desired)),
		events:   make(chan func()),
		absences: newAbsences(),
		loads:    make(chan struct{}, max(c.Loads, 1)),

		engineLoads: make(chan struct{}, max(c.EngineLoads, 1)),

		desired:   NewDesired(),
		have:      make(map[infer.ModelID]map[infer.ModelRef]*loadedVersion),
		touched:   make(map[infer.ModelID]bool),
		unsettled: make(map[infer.ModelID]bool),
		tasks:     make(map[infer.ModelID]int),
		ended:     make(chan struct{}),
		published: make(map[infer.ModelID][]VersionStatus),
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

// Run works until ctx is done. Then it gives up loads, unloads everything, and
// returns when all is closed or has failed to close in time. A backend may be
// still at work on the models that it returns, since it did not heed that it
// should stop: it must not be closed.
func (r *Reconciler) Run(ctx context.Context) (busy []infer.ModelID) {
	defer close(r.ended)
	r.stop = ctx.Done()
	r.patience, r.giveUp = context.WithCancel(context.WithoutCancel(ctx))
	defer r.giveUp()
	for ctx.Err() == nil {
		select {
		case change := <-r.changes:
			change(r.desired)
		case event := <-r.events:
			r.handle(event)
		case <-r.absences.changed:
			r.noteAbsences()
		case <-ctx.Done():
			continue
		}
		r.reconcile()
	}
	return r.drain()
}

// LastWait is how long backends may take to stop when the drain's time is over.
const LastWait = 5 * time.Second

// drain unloads everything. It returns the models of which something did not
// end.
func (r *Reconciler) drain() (busy []infer.ModelID) {
	r.draining = true
	for model := range r.have {
		r.touched[model] = true
	}
	limit := time.AfterFunc(r.config.Drain, r.giveUp)
	defer limit.Stop()
	overdue := time.NewTimer(r.config.Drain + LastWait)
	defer overdue.Stop()
	r.reconcile()
	for r.pending > 0 {
		select {
		case event := <-r.events:
			r.handle(event)
			r.reconcile()
		case <-overdue.C:
			return slices.SortedFunc(maps.Keys(r.tasks), infer.ModelID.Compare)
		}
	}
	return nil
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
	if len(r.unsettled) == 0 && r.desired.synced {
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

func (r *Reconciler) of(ref infer.ModelRef) *loadedVersion { return r.have[ref.ID()][ref] }

// keep takes a version in.
func (r *Reconciler) keep(c *loadedVersion) {
	if r.have[c.ref.ID()] == nil {
		r.have[c.ref.ID()] = make(map[infer.ModelRef]*loadedVersion)
	}
	r.have[c.ref.ID()][c.ref] = c
}

// drop lets a version go.
func (r *Reconciler) drop(ref infer.ModelRef) {
	if delete(r.have[ref.ID()], ref); len(r.have[ref.ID()]) == 0 {
		delete(r.have, ref.ID())
	}
}

// task runs work on a model in a goroutine of its own; the loop then runs what
// it returns. The goroutine ends with the loop at the latest, but for work that
// does not end.
func (r *Reconciler) task(model infer.ModelID, work func() (then func())) {
	r.pending++
	r.tasks[model]++
	go func() {
		then := work()
		event := func() {
			if r.tasks[model]--; r.tasks[model] == 0 {
				delete(r.tasks, model)
			}
			r.touched[model] = true
			then()
		}
		select {
		case r.events <- event:
		case <-r.ended:
		}
	}()
}
