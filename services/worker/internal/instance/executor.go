package instance

import (
	"context"
	"sync"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/ledger"
)

// Deps are what an executor works with. All are required but Panicked.
type Deps struct {
	Scheduler infer.Scheduler
	Responder infer.Responder
	Clock     mono.Clock
	Ledger    *ledger.Ledger
	// Panicked is told of a panic in a backend's Execute; the instance goes
	// on.
	Panicked func(Panic)
}

// Panic is a panic in a backend.
type Panic struct {
	Instance infer.InstanceID
	Name     string
	Model    infer.ModelRef
	Value    any
	Stack    []byte
}

// Spec is an instance to be opened.
type Spec struct {
	Model infer.ModelRef
	// Name is the instance's, such as digits_0_1; Device what it runs on,
	// such as cpu.
	Name, Device string
	// Passive instances are not offered to the scheduler.
	Passive  bool
	Instance backend.Instance
	// Observe is told the timing of each batch that ran; it may be nil.
	Observe func(infer.Timing)
}

// Executor is an [infer.Executor]. It is safe for concurrent use.
type Executor struct {
	deps   Deps
	worker uint64

	mu      sync.Mutex
	epoch   uint64                     // the highest seen; guarded by mu
	slots   uint32                     // used up; guarded by mu
	lanes   map[infer.InstanceID]*lane // guarded by mu
	running map[uint64]*batch          // by order, of the present epoch; guarded by mu
	spare   []*batch                   // guarded by mu
}

// NewExecutor makes the executor of a worker's incarnation.
func NewExecutor(worker uint64, deps Deps) *Executor {
	if deps.Panicked == nil {
		deps.Panicked = func(Panic) {}
	}
	return &Executor{
		deps: deps, worker: worker,
		lanes:   make(map[infer.InstanceID]*lane),
		running: make(map[uint64]*batch),
	}
}

// Open takes over an instance, starts its lane and, unless it is passive,
// grants its credits to the scheduler before it returns. [Executor.Close]
// ends it.
func (e *Executor) Open(spec Spec) infer.InstanceID {
	e.mu.Lock()
	e.slots++
	l := newLane(e, infer.InstanceID{Worker: e.worker, Slot: e.slots}, spec)
	e.lanes[l.id] = l
	e.mu.Unlock()
	go l.run()
	if !spec.Passive {
		e.deps.Scheduler.Grant(infer.Grant{
			Instance: l.id, Model: spec.Model, Name: spec.Name, Device: spec.Device, Credits: l.credits,
		})
	}
	return l.id
}

// Close retires an instance, waits until it has run its last order, and
// closes it. When ctx is done first, new orders are refused and what still
// runs is cancelled; what does not end within [StopGrace] then is left
// running, the instance is not closed, and the error says so. Closing an
// instance that is not open does nothing.
func (e *Executor) Close(ctx context.Context, id infer.InstanceID) error {
	l := e.lane(id)
	if l == nil {
		return nil
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
	return l.close(ctx)
}

// withdraw ends a lane's being found, and with it its queue. It reports false
// if somebody else has done so.
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

// Execute takes over an order. One that no lane can take is answered with a
// refusal and completed at once.
func (e *Executor) Execute(o *infer.Order) {
	if l, err := e.accept(o); err != nil {
		e.refuse(o, l, err)
	}
}

// accept makes a batch of the order and queues it in its lane. The lane is
// returned if the scheduler is the present one.
func (e *Executor) accept(o *infer.Order) (*lane, *errs.Error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if o.Epoch < e.epoch {
		return nil, errs.New(errs.NoWorker, "the order came from a scheduler of epoch %d, which was replaced by that of epoch %d", o.Epoch, e.epoch)
	}
	e.epoch = o.Epoch
	l := e.lanes[o.Instance]
	if l == nil {
		return nil, errs.New(errs.NoWorker, "the worker has no instance %d any more", o.Instance.Slot)
	}
	if l.taken == l.credits {
		return l, errs.New(errs.Bug, "instance %s got more orders than its %d credits", l.spec.Name, l.credits)
	}
	l.taken++
	b := e.blank()
	b.begin(l, o)
	e.running[o.ID] = b
	l.work.Add(1)
	l.queue <- b // has room: taken counts what is queued and what runs
	return l, nil
}

func (e *Executor) blank() *batch {
	if n := len(e.spare); n > 0 {
		b := e.spare[n-1]
		e.spare[n-1] = nil
		e.spare = e.spare[:n-1]
		return b
	}
	return new(batch)
}

// refuse answers an order that does not run. Its credit is given back if the
// instance exists and its scheduler is the present one.
func (e *Executor) refuse(o *infer.Order, l *lane, err *errs.Error) {
	done := newCompletion(len(o.Requests))
	done.Order, done.Instance = o.ID, o.Instance
	now := e.deps.Clock.Now()
	done.Timing = infer.Timing{Start: now, InputDone: now, InferDone: now, Done: now}
	if l != nil {
		done.Credits = 1
	}
	for i, r := range o.Requests {
		done.Outcomes[i] = infer.Rejected
		work := r.Work
		r.Release()
		e.deps.Responder.Respond(infer.Fail(work, err))
	}
	e.deps.Scheduler.Complete(done)
}

// Cancel marks one request of a running or waiting order. When it was the
// last that anybody waited for, the instance is asked to stop.
func (e *Executor) Cancel(order uint64, request infer.RequestID) {
	e.mu.Lock()
	b := e.running[order]
	if b == nil {
		e.mu.Unlock()
		return
	}
	b.mu.Lock() // before e.mu is let go, or b could become another order's
	e.mu.Unlock()
	b.cancel(request)
}

// Retired lets [Executor.Close] go on.
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
	type pair struct {
		order   uint64
		request infer.RequestID
	}
	var all []pair
	e.mu.Lock()
	for id, b := range e.running {
		if b.lane == l {
			for _, r := range b.order.Requests {
				all = append(all, pair{id, r.Work.Request})
			}
		}
	}
	e.mu.Unlock()
	for _, p := range all {
		e.Cancel(p.order, p.request)
	}
}

// forget ends a batch's being known by its order.
func (e *Executor) forget(b *batch) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running[b.order.ID] == b {
		delete(e.running, b.order.ID)
	}
	b.lane.taken--
}

// recycle keeps a batch that neither the lane nor the backend uses any more.
func (e *Executor) recycle(b *batch) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.spare = append(e.spare, b)
}
