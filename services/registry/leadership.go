package registry

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/obs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core"
	"github.com/nereid-serving/nereid/services/registry/internal/repo"
)

// leadership is one time as the leader: it feeds a core with what the buckets, readers and
// callers bring, and does what follows. All fields but requests, ended, found and report are
// owned by run's goroutine.
type leadership struct {
	core      *core.Core
	buckets   *buckets
	cfg       Config
	log       *zap.Logger
	scanner   *repo.Scanner
	completer *completer
	backup    *stateBackup
	// announce publishes the revision from which on the bucket models is whole.
	announce func(ctx context.Context, revision uint64) error

	requests chan *call      // from callers
	ended    chan struct{}   // closed when the leadership ends
	found    chan core.Event // from readers
	readers  sync.WaitGroup
	report   atomic.Pointer[core.Report]

	calls   map[uint64]*call // that are not answered, by number
	last    uint64           // the number of the last call
	started bool             // the core knows what the store has lost
}

// call is a load or unload that a caller waits for.
type call struct {
	load       bool
	id         infer.ModelID
	config     string
	files      map[string][]byte
	dependents bool
	done       chan error // has room for the one outcome
}

func newLeadership(b *buckets, r *Registry, epoch uint64) *leadership {
	l := &leadership{
		core: core.New(r.cfg.core(r.pools, epoch)), buckets: b, cfg: r.cfg, log: r.log, scanner: r.scanner, completer: r.completer, backup: r.backup,
		requests: make(chan *call), ended: make(chan struct{}), found: make(chan core.Event), calls: make(map[uint64]*call),
	}
	l.report.Store(new(core.Report))
	l.completer.reset()
	return l
}

// run feeds the core until ctx ends or a value of a newer release is met, which it must not
// replace.
func (l *leadership) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer l.readers.Wait()
	defer cancel()
	defer close(l.ended)
	in := l.watch(ctx)
	wake := time.NewTimer(l.cfg.WorkerGrace)
	defer wake.Stop()
	for {
		e, err := l.next(ctx, in, wake.C)
		if err != nil {
			return err
		}
		if e == nil {
			continue
		}
		wait := l.step(ctx, e)
		if !l.started && l.core.Whole() {
			if e, err = l.findLoss(ctx); err != nil {
				l.log.Warn("state not read", obs.Err(err)...)
				wait = l.cfg.Retry
			} else {
				wait = l.step(ctx, e)
			}
		}
		wake.Reset(wait)
	}
}

// step has the core take an event, does what follows, and returns after what time the next
// step is due.
func (l *leadership) step(ctx context.Context, e core.Event) time.Duration {
	workersChanged := false
	for {
		effects := l.core.Step(time.Now(), e)
		workersChanged = workersChanged || effects.WorkersChanged
		l.publish(effects)
		l.startReads(ctx, effects)
		if effects.Sweep != nil {
			l.sweep(ctx, effects.Sweep)
		}
		switch {
		case len(effects.Commands) > 0:
			e = l.execute(ctx, effects.Commands)
		case workersChanged && l.completer.follow(l.core.Workers()):
			e, workersChanged = core.WorkersCanComplete{}, false
		default:
			return effects.Wake
		}
		if ctx.Err() != nil {
			return effects.Wake
		}
	}
}

// publish hands out what others get to see of a step.
func (l *leadership) publish(effects core.Effects) {
	levels := map[core.Level]func(string, ...zap.Field){core.Info: l.log.Info, core.Warn: l.log.Warn, core.Error: l.log.Error}
	for _, n := range effects.Notes {
		fields := make([]zap.Field, len(n.Fields))
		for i, f := range n.Fields {
			fields[i] = zap.Any(f.Name, f.Value)
		}
		levels[n.Level](n.Text, fields...)
	}
	if effects.Report != nil {
		l.report.Store(effects.Report)
	}
	for _, a := range effects.Answers {
		l.calls[a.Caller].done <- a.Err
		delete(l.calls, a.Caller)
	}
}

// findLoss finds out what the store has lost of its state, which this replica remembers.
func (l *leadership) findLoss(ctx context.Context) (core.Event, error) {
	synced, err := l.buckets.models.Synced(ctx)
	if err != nil {
		return nil, err
	}
	l.started = true
	models, assignments := l.backup.values()
	if synced || len(models) == 0 {
		return core.Started{}, nil
	}
	l.restoreFiles(ctx, models)
	lost := core.Started{Models: models, Assignments: make(map[core.Key]*nereidv1.AssignmentValue, len(assignments))}
	for key, v := range assignments {
		owner, name := bus.CutKey(key)
		lost.Assignments[core.Key{Owner: owner, Name: name}] = v
	}
	return lost, nil
}

// inputs are what the loop receives from the buckets.
type inputs struct {
	models      <-chan bus.Event[*nereidv1.ModelValue]
	workers     <-chan bus.Event[*nereidv1.WorkerValue]
	instances   <-chan bus.Event[*nereidv1.InstancesValue]
	assignments <-chan bus.Event[*nereidv1.AssignmentValue]
	pools       <-chan bus.Event[*nereidv1.PoolValue]
	gateways    <-chan bus.Event[*nereidv1.ServiceValue]
	schedulers  <-chan bus.Event[*nereidv1.ServiceValue]
	leaders     <-chan bus.Event[*nereidv1.LeaderValue]
}

func (l *leadership) watch(ctx context.Context) inputs {
	return inputs{
		models: l.buckets.models.Watch(ctx), workers: l.buckets.workers.Watch(ctx),
		instances: l.buckets.instances.Watch(ctx), assignments: l.buckets.assignments.Watch(ctx), pools: l.buckets.pools.Watch(ctx),
		gateways: l.buckets.gateways.Watch(ctx), schedulers: l.buckets.schedulers.Watch(ctx),
		leaders: l.buckets.leaders.Watch(ctx),
	}
}

// next waits for an event; nil is one that says nothing.
func (l *leadership) next(ctx context.Context, in inputs, wake <-chan time.Time) (core.Event, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case e, ok := <-in.models:
		return received(core.Models, e, ok)
	case e, ok := <-in.workers:
		return received(core.Workers, e, ok)
	case e, ok := <-in.instances:
		return received(core.Instances, e, ok)
	case e, ok := <-in.assignments:
		return received(core.Assignments, e, ok)
	case e, ok := <-in.pools:
		return received(core.Pools, e, ok)
	case e, ok := <-in.gateways:
		return received(core.Gateways, e, ok)
	case e, ok := <-in.schedulers:
		return received(core.Schedulers, e, ok)
	case e, ok := <-in.leaders:
		return received(core.Leaders, e, ok)
	case o := <-l.requests:
		l.last++
		l.calls[l.last] = o
		return core.Requested{
			Caller: l.last, Load: o.load, Model: o.id, Overrides: o.config != "" || len(o.files) > 0, Dependents: o.dependents,
		}, nil
	case e := <-l.found:
		return e, nil
	case <-wake:
		return core.Tick{}, nil
	}
}

// errWatchEnded says that the bus is closing.
var errWatchEnded = errors.New("the watch ended")

// received is an event of a bucket's watch. A value of a newer release is an error: it must
// not be replaced.
func received[T nereidv1.Value](bucket core.Bucket, e bus.Event[T], open bool) (core.Event, error) {
	if !open {
		return nil, errWatchEnded
	}
	switch e.Kind {
	case bus.EventCaughtUp:
		return core.CaughtUp{Bucket: bucket, Revision: e.Revision}, nil
	case bus.EventPut, bus.EventDelete:
	default:
		return nil, nil
	}
	changed := core.Changed{Bucket: bucket, Key: core.Key{Name: e.Key}, Revision: e.Revision, Deleted: e.Kind == bus.EventDelete, Expired: e.Expired}
	if bucket == core.Instances || bucket == core.Assignments {
		changed.Key.Owner, changed.Key.Name = bus.CutKey(e.Key)
	}
	if e.Kind == bus.EventPut && e.Err == nil {
		if schema := e.Value.GetSchema(); schema > nereidv1.Schema {
			return nil, errs.New(errs.StateUnavailable,
				"the value of %q has schema %d, newer than %d: a newer release leads; upgrade this one", e.Key, schema, nereidv1.Schema)
		}
		changed.Value = e.Value
	}
	return changed, nil
}
