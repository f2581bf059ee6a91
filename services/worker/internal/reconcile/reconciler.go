package reconcile

import (
	"context"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
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
// called from the reconciler's goroutine, except for Backend, Lanes.Close,
// Retried and Failed, which are called from any.
type Deps struct {
	// Backend opens the named backend, or returns the open one.
	Backend func(name string) (backend.Backend, error)
	Lanes   Lanes
	// Publish takes what the worker runs, after each change. It must not
	// block.
	Publish func(Status)
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

	pending  int // tasks whose event has not been run
	desired  *Desired
	have     map[infer.ModelRef]*content
	status   Status
	serving  bool // all that was assigned has come to its end, and some of it is ready
	draining bool
	stop     <-chan struct{}    // closed when the drain begins
	patience context.Context    //nolint:containedctx // ends when the drain has taken too long
	giveUp   context.CancelFunc // ends patience
}

// New makes a reconciler. [Reconciler.Run] starts it.
func New(c Config, deps Deps) *Reconciler {
	return &Reconciler{
		config: c, deps: deps,
		changes: make(chan func(*Desired)),
		events:  make(chan func()),
		slots:   make(chan struct{}, max(c.Loads, 1)),
		desired: NewDesired(),
		have:    make(map[infer.ModelRef]*content),

		background: make(chan struct{}, max(c.Background, 1)),
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
	var wants []want
	if !r.draining {
		wants = r.desired.wants()
	}
	steps, settled := plan(wants, r.held())
	for _, s := range steps {
		r.take(s)
	}
	if settled {
		r.serving = r.anyReady()
	}
	r.publish(settled)
}

func (r *Reconciler) take(s step) {
	switch s.do {
	case load:
		r.load(s.want)
	case resize:
		r.resize(r.have[s.ref], s.want)
	case abandon:
		r.have[s.ref].abandon()
	case unload:
		r.unload(r.have[s.ref])
	case forget:
		delete(r.have, s.ref)
	}
}

// task runs work in a goroutine of its own; the loop then runs what it
// returns, so the goroutine ends with the loop at the latest.
func (r *Reconciler) task(work func() (then func())) {
	r.pending++
	go func() { r.events <- work() }()
}
