// Package dispatch drives the scheduler's core: it passes events and the time to
// it one at a time, and carries out its decisions.
//
// # One loop, no goroutine of its own on the path
//
// Events go into an inbox. A goroutine that posts an event while nobody works on
// the inbox does the work itself, its own event first and then those that arrived
// meanwhile. At low load, a request thus goes from the front end's goroutine to
// the instance without waking another one; at high load, one goroutine decides
// while the others only append. So that no caller works for the others forever,
// it hands over to [Loop.Run]'s goroutine after a bounded number of events.
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

// turn is how many events a poster works off before it hands over.
const turn = 256

// Loop is the driver of one pool's core. Its methods are safe for concurrent
// use and do not block.
type Loop struct {
	clock     mono.Clock
	responder infer.Responder
	stats     *stats.Set
	members   Membership
	recorders []Recorder
	wake      *wake.Up
	more      chan struct{} // wakes Run to take the loop over

	mu      sync.Mutex
	inbox   []message // guarded by mu
	busy    bool      // somebody works on the inbox; guarded by mu
	running bool      // Run has begun; guarded by mu
	stopped bool      // guarded by mu

	// Owned by whoever has set busy.
	core      *core.Core
	taken     []message
	served    []stats.Served
	executors map[uint64]infer.Executor

	items sync.Pool // of *core.Item
}

// message is an event, with a worker's executor if it connects one, or a look
// at the core.
type message struct {
	event    core.Event
	executor infer.Executor
	look     func(*core.Core)
}

// Deps are what a Loop works with.
type Deps struct {
	Clock     mono.Clock
	Responder infer.Responder
	Stats     *stats.Set
	Members   Membership
	// Recorders are told of every step.
	Recorders []Recorder
}

// Recorder keeps the steps of the core. Its methods are called in turns, one at a
// time; they do not block, and keep nothing that they are given.
type Recorder interface {
	// Event brings what enters the core now.
	Event(now mono.Time, e *core.Event)
	// Decided brings what the core has decided about it.
	Decided([]core.Decision)
}

// Membership takes what the core decides about workers. Its methods do not
// block.
type Membership interface {
	// Record has the store hold the history, and then calls [Loop.Recorded].
	Record(version uint64, h core.History)
	// Gone says that a worker counts as dead. It died unless it had given up its
	// lease or left; one that has left may exit now.
	Gone(worker uint64, died bool)
	// Placed says on which worker a request runs that its gateway has submitted
	// again.
	Placed(w infer.Work, worker uint64)
}

// New makes a loop whose events wait until [Loop.Run] is called.
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

// Run works until ctx is done. Then requests are refused as draining; what is
// queued or runs is still finished by the events that end it. Nothing is
// decided before [Loop.BecomeLeader].
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

// takeOver works off the inbox for posters that have done their turn.
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

// stop refuses what comes from now on and leaves the inbox to the posters,
// who are few by now.
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

// post adds a message and, if nobody works on the inbox, does.
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

// drain works off the inbox, for at most a turn. The caller has set busy.
func (l *Loop) drain() {
	for worked := 0; l.take(worked); worked += len(l.taken) {
		for i := range l.taken {
			l.handle(&l.taken[i])
		}
		l.wake.Set(l.core.NextWake())
	}
}

// take swaps the inbox for an empty one. If it is empty the loop is given up;
// if the turn is over it is handed over.
func (l *Loop) take(worked int) bool {
	clear(l.taken)
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.inbox) == 0 {
		l.busy = false
		return false
	}
	if worked >= turn && !l.stopped {
		l.more <- struct{}{} // has room: only who works on the inbox sends
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
