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

// Config limits what a reconciler does.
type Config struct {
	// Loads is how many versions may load at the same time, at least 1.
	Loads int
	// EngineLoads is how many of those engines in this process may load once the initial assignment is serving, at
	// least 1: each such load slows requests down.
	EngineLoads int
	// Retries is how often a failed load is retried immediately.
	Retries int
	// Linger is how long a generation continues to serve after its successor has been reported as ready, so that
	// requests on their way to it arrive.
	Linger time.Duration
	// Drain is how long running and queued requests may take when the worker stops.
	Drain time.Duration
}

// Deps are the dependencies of a reconciler. All are required. The reconciler's goroutine calls the functions, except
// for Backend, Sequences, Source, Instances.Close, Retried and Failed, which any goroutine may call.
type Deps struct {
	// Backend opens the named backend, or returns the open one.
	Backend func(name string) (backend.Backend, error)
	// Sequences prepares what the instances of a version share for sequences: nil if the model does not batch
	// sequences.
	Sequences func(v backend.Version) (*sequence.Model, error)
	// Source provides the files of models.
	Source    source.Source
	Instances Instances
	// Calls handles the calls that models make while they warm up.
	Calls infer.Caller
	// Meter measures the memory that loads take.
	Meter *memory.Meter
	// Publish receives what the worker runs of a model after each change, ordered by version and generation; nil if
	// it runs nothing any more. It must not block.
	Publish func(model infer.ModelID, versions []VersionStatus)
	// Reached receives, after Publish, the desired state that was reached. It must not block either.
	Reached func(Revisions)
	// Loaded receives the end of each load; err is nil if it succeeded. If it failed, v may have no configuration.
	Loaded func(v backend.Version, took time.Duration, err error)
	// Retried receives a load attempt that failed and is not the last.
	Retried func(v backend.Version, took time.Duration, err error)
	// Failed receives an instance or model that did not close.
	Failed func(ref infer.ModelRef, err error)
}

// Instances runs instances.
type Instances interface {
	// Open takes ownership of an instance and grants it to the scheduler before it returns.
	Open(InstanceSpec) infer.InstanceID
	// Close retires an instance and closes it; see instance.Executor.
	Close(ctx context.Context, id infer.InstanceID) error
}

// InstanceSpec describes an instance to run.
type InstanceSpec struct {
	Model infer.ModelRef
	Name  string
	// Device is a device such as cpu or gpu:0.
	Device   string
	Passive  bool
	Instance backend.Instance
	// Warmed is how long the instance's warmup executions took.
	Warmed []infer.Cost
	// Iterative allows requests to run again: see [backend.Batch].
	Iterative bool
	// Unready is called with the reason why the instance is away or not ready, and with nil when it is ready.
	Unready func(id infer.InstanceID, cause error)
}

// Reconciler owns what the worker has loaded.
type Reconciler struct {
	config  Config
	deps    Deps
	changes chan func(*Desired)
	events  chan func() // results of tasks; run by the loop
	// absences are reported by instances.
	absences *absences
	// loads limits all loads, engineLoads those of engines while versions serve.
	loads, engineLoads semaphore

	// Owned by Run's goroutine.

	pending int                   // tasks whose event has not been run
	tasks   map[infer.ModelID]int // by model
	desired *Desired
	have    map[infer.ModelID]map[infer.ModelRef]*loadedVersion // by model
	// touched are models that have had an event since they were last checked, unsettled those with something left to
	// do or to wait for. No decision about a model depends on another, so an event costs the same however many models
	// there are.
	touched, unsettled map[infer.ModelID]bool
	published          map[infer.ModelID][]VersionStatus // by model
	reached            Revisions
	serving            bool // everything assigned has reached its final state, and some of it is ready
	draining           bool
	stop               <-chan struct{}    // closed when the drain starts
	ended              chan struct{}      // closed when the loop has ended
	patience           context.Context    //nolint:containedctx // ends when the drain has taken too long
	giveUp             context.CancelFunc // ends patience
}

// New returns a reconciler. [Reconciler.Run] starts it.
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

// Change makes the loop apply a change to the desired state. It waits for the loop, but not for the effects of the
// change, and returns immediately when ctx is done.
func (r *Reconciler) Change(ctx context.Context, change func(*Desired)) {
	select {
	case r.changes <- change:
	case <-ctx.Done():
	}
}

// Run works until ctx is done. Then it abandons loads, unloads everything, and returns when everything is closed or
// has failed to close in time. Run returns the models that a backend may still be working on because it ignored the
// request to stop: that backend must not be closed.
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

// LastWait is how long backends may take to stop once the drain timeout is over.
const LastWait = 5 * time.Second

// drain unloads everything. It returns the models of which something did not end.
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

// bring takes the steps that are due for a model.
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

// keep adds a version.
func (r *Reconciler) keep(c *loadedVersion) {
	if r.have[c.ref.ID()] == nil {
		r.have[c.ref.ID()] = make(map[infer.ModelRef]*loadedVersion)
	}
	r.have[c.ref.ID()][c.ref] = c
}

// drop removes a version.
func (r *Reconciler) drop(ref infer.ModelRef) {
	if delete(r.have[ref.ID()], ref); len(r.have[ref.ID()]) == 0 {
		delete(r.have, ref.ID())
	}
}

// task runs work on a model in its own goroutine; the loop then runs the returned function. The goroutine ends no
// later than the loop, unless the work does not end.
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
