package instance

import (
	"context"
	"sync"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/batches"
	"github.com/nereid-serving/nereid/services/worker/internal/ledger"
)

// Deps are the dependencies of an executor. All are required but Log, Fresh, Leaving and Panicked.
type Deps struct {
	Scheduler infer.Scheduler
	Responder infer.Responder
	// Calls handles the calls of models.
	Calls infer.Caller
	Clock mono.Clock
	// Batches is the worker's table.
	Batches *batches.Table
	// Log may be nil.
	Log *ledger.Log
	// Fresh reports whether a batch that was accepted at the given time may still start: a batch from before a long
	// stall of the worker is returned. Nil means always.
	Fresh func(accepted mono.Time) bool
	// Leaving reports whether the worker is about to stop, so that nothing may be left with it. Nil means never.
	Leaving func() bool
	// Pipelined is how many batches each instance accepts beyond those that it runs at a time.
	Pipelined int
	// Panicked is notified of a panic in a backend's Execute; the instance continues.
	Panicked func(Panic)
}

func (d *Deps) leaving() bool { return d.Leaving != nil && d.Leaving() }

// Panic is a panic in a backend.
type Panic struct {
	Instance infer.InstanceID
	Name     string
	Model    infer.ModelRef
	Value    any
	Stack    []byte
}

// Spec describes an instance to open.
type Spec struct {
	Model infer.ModelRef
	// Name is the instance's name, such as digits_0_1; Device what it runs on, such as cpu.
	Name, Device string
	// Iterative allows the backend to end requests by [backend.Batch.Again].
	Iterative bool
	// Passive instances are not granted to the scheduler.
	Passive  bool
	Instance backend.Instance
	// Warmed is how long the instance's warmup executions took.
	Warmed []infer.Cost
	// Observe receives the timing of each batch that ran; it may be nil.
	Observe func(infer.Timing)
	// Unready is called with the reason why the instance is not ready, or away, and with nil when it is ready. It may
	// be nil, and must not wait for the goroutine that opens or closes the instance.
	Unready func(id infer.InstanceID, cause error)
}

// Executor is an [infer.Executor]. It is safe for concurrent use.
type Executor struct {
	deps   Deps
	worker uint64

	mu    sync.Mutex
	slots uint32                     // used up; guarded by mu
	lanes map[infer.InstanceID]*lane // guarded by mu
	spare []*batch                   // guarded by mu
}

// NewExecutor returns the executor of a worker's incarnation.
func NewExecutor(worker uint64, deps Deps) *Executor {
	if deps.Panicked == nil {
		deps.Panicked = func(Panic) {}
	}
	if deps.Fresh == nil {
		deps.Fresh = func(mono.Time) bool { return true }
	}
	return &Executor{deps: deps, worker: worker, lanes: make(map[infer.InstanceID]*lane)}
}

// Open takes ownership of an instance, starts its lane and, unless it is passive, grants its credits to the scheduler
// before it returns. They are withdrawn while the instance is away. [Executor.Close] ends it.
func (e *Executor) Open(spec Spec) infer.InstanceID {
	e.mu.Lock()
	e.slots++
	l := newLane(e, infer.InstanceID{Worker: e.worker, Slot: e.slots}, spec)
	e.lanes[l.id] = l
	e.mu.Unlock()
	if h, ok := spec.Instance.(batches.Holder); ok {
		e.deps.Batches.Hold(l.id, h)
	}
	go l.run()
	l.offer(l.credits)
	if r, ok := spec.Instance.(backend.Changing); ok {
		r.Watch(l.watch)
	}
	return l.id
}

// Close retires an instance, waits until it has run its last batch, and closes it. If ctx is done first, new batches
// are returned and running ones canceled; an instance that does not end within [backend.StopGrace] then is stopped.
// If it cannot be stopped, it is left running and not closed, and the error says so. Closing an instance that is not
// open does nothing.
func (e *Executor) Close(ctx context.Context, id infer.InstanceID) error {
	l := e.lane(id)
	if l == nil {
		return nil
	}
	if r, ok := l.spec.Instance.(backend.Changing); ok {
		r.Watch(nil) // a grant would reintroduce what the scheduler has released
	}
	if !l.spec.Passive {
		e.deps.Scheduler.Retire(id)
		select {
		case <-l.retired:
		case <-ctx.Done():
		}
	}
	if !e.withdraw(l) {
		return nil
	}
	e.deps.Batches.Hold(id, nil)
	return l.close(ctx)
}

// withdraw removes a lane, so that it cannot be found any more, and closes its queue. It reports false if that has
// already been done.
func (e *Executor) withdraw(l *lane) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lanes[l.id] == nil {
		return false
	}
	delete(e.lanes, l.id)
	close(l.queue)
	return true
}

// Cancel marks one request of a running or waiting batch as canceled. If it was the last that anybody waited for, the
// instance is asked to stop.
func (e *Executor) Cancel(id infer.BatchID, request infer.RequestID) {
	var b *batch
	e.deps.Batches.With(id, func(run any) {
		if b, _ = run.(*batch); b != nil {
			b.users.Add(1) // otherwise it could become another batch
			b.cancel(request)
		}
	})
	if b != nil {
		b.hangUp()
		b.tellCanceled()
		b.stopAbandoned()
		b.release()
	}
}

// Retired lets [Executor.Close] continue.
func (e *Executor) Retired(id infer.InstanceID) {
	if l := e.lane(id); l != nil {
		l.retire()
	}
}

func (e *Executor) lane(id infer.InstanceID) *lane {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lanes[id]
}

// abandon cancels everything that a lane runs or has queued.
func (e *Executor) abandon(l *lane) {
	type unit struct {
		batch   infer.BatchID
		request infer.RequestID
	}
	var all []unit
	e.deps.Batches.Each(func(id infer.BatchID, run any) {
		if b, ok := run.(*batch); ok && b.lane == l {
			b.mu.Lock()
			defer b.mu.Unlock()
			for _, r := range b.of.Requests {
				all = append(all, unit{id, r.Work.Request})
			}
		}
	})
	for _, u := range all {
		e.Cancel(u.batch, u.request)
	}
}

// leave returns the credit of a batch, retains the progress of its requests that will run again, and starts the batch
// whose turn it is now.
func (e *Executor) leave(b *batch) {
	e.mu.Lock()
	b.lane.pause(b.pausing)
	next := b.lane.leaveLocked(b)
	e.mu.Unlock()
	if next != nil {
		next.start(e.deps.Clock.Now())
		next.release()
	}
}

// unqueue records that a lane has taken a batch from its queue.
func (e *Executor) unqueue(l *lane) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l.queued--
}

// passed records that the instance has a batch that was being passed on, or that the batch ended before.
func (e *Executor) passed(l *lane) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l.passing--
}

// recycle retains a batch that neither the lane nor the backend uses any more.
func (e *Executor) recycle(b *batch) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.spare = append(e.spare, b)
}
