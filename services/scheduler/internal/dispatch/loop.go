// Package dispatch drives the scheduler's core: it passes events and the time to the core one at a time, and carries
// out its decisions.
//
// # One loop, without a goroutine of its own on the path
//
// Events go into an inbox. A goroutine that posts an event while nobody works on the inbox does the work itself: its
// own event first, then those that arrived in the meantime. At low load, a request thus goes from the front end's
// goroutine to the instance without waking another one; at high load, one goroutine decides while the others only
// append. To keep a caller from working for the others forever, it hands over to [Loop.Run]'s goroutine after a
// bounded number of events.
package dispatch

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/scheduler/core"
	"github.com/nereid-serving/nereid/services/scheduler/internal/stats"
	"github.com/nereid-serving/nereid/services/scheduler/internal/wake"
)

// turn is how many events a poster handles before it hands over.
const turn = 256

// Loop drives the core of one pool. Its methods are safe for concurrent use and do not block.
type Loop struct {
	clock     mono.Clock
	responder infer.Responder
	stats     *stats.Set
	members   Membership
	recorders []Recorder
	wake      *wake.Up
	more      chan struct{} // makes Run take the loop over

	mu      sync.Mutex
	inbox   []message // guarded by mu
	busy    bool      // somebody works on the inbox; guarded by mu
	running bool      // Run has started; guarded by mu
	stopped bool      // guarded by mu

	// Owned by the goroutine that has set busy.
	core      *core.Core
	taken     []message
	served    []stats.Served
	executors map[uint64]infer.Executor

	items sync.Pool // of *core.Item
}

// message is an event, with the worker's executor if it connects a worker, or a query of the core.
type message struct {
	event    core.Event
	executor infer.Executor
	look     func(*core.Core)
}

// Deps are the dependencies of a Loop.
type Deps struct {
	Clock     mono.Clock
	Responder infer.Responder
	Stats     *stats.Set
	Members   Membership
	// Recorders are notified of every step.
	Recorders []Recorder
}

// Recorder records the steps of the core. Its methods are called alternately, one at a time. They must not block, and
// must not retain their arguments.
type Recorder interface {
	// Event reports an event that is about to enter the core.
	Event(now mono.Time, e *core.Event)
	// Decided reports what the core has decided about it.
	Decided([]core.Decision)
}

// Membership handles the core's decisions about workers. Its methods do not block.
type Membership interface {
	// Record makes the store hold the history, and then calls [Loop.Recorded].
	Record(version uint64, h core.History)
	// Gone says that a worker counts as dead. It died, unless it had given up its lease or left; a worker that has
	// left may exit now.
	Gone(worker uint64, died bool)
	// Placed says which worker runs a request that its gateway has resubmitted.
	Placed(w infer.Work, worker uint64)
}

// New returns a loop whose events wait until [Loop.Run] is called.
func New(config core.Config, deps Deps) (*Loop, error) {
	l := &Loop{
		clock: deps.Clock, responder: deps.Responder, stats: deps.Stats, members: deps.Members, recorders: deps.Recorders,
		more:      make(chan struct{}, 1),
		busy:      true, // by Run
		core:      core.New(config),
		executors: make(map[uint64]infer.Executor),
	}
	l.items.New = func() any { return new(core.Item) }
	up, err := wake.New(deps.Clock, func() { l.post(message{event: core.Event{Kind: core.Tick}}) })
	if err != nil {
		return nil, errs.Wrap(errs.Bug, err, "the scheduler has no timer")
	}
	l.wake = up
	return l, nil
}

// Run works until ctx is done. From then on it refuses new requests as draining; queued and running ones are still
// finished by the events that end them. Nothing is decided before [Loop.BecomeLeader].
func (l *Loop) Run(ctx context.Context) error {
	l.mu.Lock()
	l.running = true
	l.mu.Unlock()
	defer l.wake.Close()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return l.wake.Run(ctx) })
	group.Go(func() error { return l.takeOver(ctx) })
	return group.Wait()
}

// takeOver works off the inbox for posters whose turn is over.
func (l *Loop) takeOver(ctx context.Context) error {
	l.drain()
	for {
		select {
		case <-l.more:
			l.drain()
		case <-ctx.Done():
			l.stop()
			return nil
		}
	}
}

// stop refuses new requests from now on and leaves the inbox to the posters, of which few are left.
func (l *Loop) stop() {
	l.mu.Lock()
	l.stopped = true
	l.mu.Unlock()
	select {
	case <-l.more:
		l.drain()
	default:
	}
}

// post adds a message and, if nobody works on the inbox, works it off.
func (l *Loop) post(m message) {
	l.mu.Lock()
	l.inbox = append(l.inbox, m)
	if l.busy {
		l.mu.Unlock()
		return
	}
	l.busy = true
	l.mu.Unlock()
	l.drain()
}

// drain works off the inbox, for at most one turn. The caller has set busy.
func (l *Loop) drain() {
	for worked := 0; l.take(worked); worked += len(l.taken) {
		for i := range l.taken {
			l.handle(&l.taken[i])
		}
		l.wake.Set(l.core.NextWake())
	}
}

// take swaps the inbox for an empty one. If it is empty, the caller stops working on it; if the turn is over, Run
// takes over.
func (l *Loop) take(worked int) bool {
	clear(l.taken)
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.inbox) == 0 {
		l.busy = false
		return false
	}
	if worked >= turn && !l.stopped {
		l.more <- struct{}{} // never blocks: only the goroutine that works on the inbox sends
		return false
	}
	l.inbox, l.taken = l.taken[:0], l.inbox
	return true
}

func (l *Loop) handle(m *message) {
	worker := m.event.Instance.Worker
	switch {
	case m.look != nil:
		m.look(l.core)
		return
	case m.executor != nil:
		l.executors[worker] = m.executor
	}
	now := l.clock.Now()
	for _, r := range l.recorders {
		r.Event(now, &m.event)
	}
	decisions := l.core.Step(now, &m.event)
	for _, r := range l.recorders {
		r.Decided(decisions)
	}
	for i := range decisions {
		l.apply(&m.event, &decisions[i])
	}
	switch m.event.Kind {
	case core.WorkerLost, core.WorkerDisconnected:
		delete(l.executors, worker)
	case core.StepDown:
		clear(l.executors)
	}
}
