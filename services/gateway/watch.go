package gateway

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/obs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/view"
)

// leaderRole is the registry's key in the bucket leaders.
const leaderRole = "registry"

type registration = bus.Registration[*nereidv1.ServiceValue]

// register takes the gateway's key, whose epoch is its incarnation. A value
// under its id is that of an earlier life.
func (g *Gateway) register(ctx context.Context) (*registration, error) {
	bucket, err := bus.NewBucket(g.deps.Bus, bus.Gateways, bus.Values[*nereidv1.ServiceValue]())
	if err != nil {
		return nil, err
	}
	return bucket.Register(ctx, bus.Claim[*nereidv1.ServiceValue]{
		Key:     g.config.ID,
		Value:   func(epoch uint64) *nereidv1.ServiceValue { return g.value(epoch, 0, 0, 0) },
		Replace: func(*nereidv1.ServiceValue) bool { return true },
		Epoch:   (*nereidv1.ServiceValue).GetEpoch,
	})
}

func (g *Gateway) value(epoch, models, workers, instances uint64) *nereidv1.ServiceValue {
	return &nereidv1.ServiceValue{
		Schema: nereidv1.Schema, Id: g.config.ID, Epoch: epoch, Version: g.config.Version,
		AppliedRevision: models, WorkersRevision: workers, InstancesRevision: instances, State: g.state(),
	}
}

// state is what the readiness endpoint says, and that it says so for good.
func (g *Gateway) state() nereidv1.State {
	switch engine := g.engine.Load(); {
	case engine != nil && engine.Leaving():
		return nereidv1.State_STATE_UNLOADING
	case g.Ready():
		return nereidv1.State_STATE_READY
	}
	return nereidv1.State_STATE_LOADING
}

// backlog is how many changes may wait for the snapshot that has them.
const backlog = 1024

// change is something that a bucket said.
type change func(*view.State)

// watch keeps the engine's snapshot in step with the buckets until ctx is
// done.
func (g *Gateway) watch(ctx context.Context, engine *core.Gateway, r *registration) error {
	changes := make(chan change, backlog)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return follow(ctx, g, bus.Models, changes, modelChange) })
	group.Go(func() error { return follow(ctx, g, bus.Workers, changes, g.workerChanges(ctx, group, changes)) })
	group.Go(func() error { return follow(ctx, g, bus.Instances, changes, instancesChange) })
	group.Go(func() error { return follow(ctx, g, bus.Leaders, changes, leaderChange) })
	lacked := new(atomic.Pointer[[]string]) // the pools without a scheduler, as last applied
	group.Go(func() error { return g.apply(ctx, engine, r, changes, lacked) })
	if g.deps.Reachable != nil {
		group.Go(func() error { return g.reach(ctx, engine, changes, lacked) })
	}
	return group.Wait()
}

// apply owns the view's state: it takes changes, as many as there are at
// once, and then puts one snapshot into force.
func (g *Gateway) apply(
	ctx context.Context, engine *core.Gateway, r *registration, changes <-chan change, lacked *atomic.Pointer[[]string],
) error {
	state, left := view.NewState(), engine.Left()
	for {
		select {
		case <-ctx.Done():
			return nil
		case c := <-changes:
			c(state)
		case <-left:
			left = nil // told below
		}
		for more := true; more; {
			select {
			case c := <-changes:
				c(state)
			default:
				more = false
			}
		}
		snapshot := state.Snapshot()
		lacking := engine.Update(snapshot)
		lacked.Store(&lacking)
		g.meters.Keep(snapshot.Models())
		g.noteStart(engine)
		workers, instances := state.Observed()
		if err := r.Set(ctx, g.value(r.Epoch(), snapshot.Revision, workers, instances)); err != nil && ctx.Err() == nil {
			g.deps.Log.Warn("applied revision is not published yet", obs.Err(err)...)
		}
		lifecycle.Pause(ctx, snapshotRest*time.Duration(snapshot.Len()))
	}
}

// snapshotRest is for how long there is no snapshot after one, for each model in it:
// while a thousand of them load there is news all the time.
const snapshotRest = 2 * time.Microsecond

const (
	// reachRest is how often it is seen to which pools have a scheduler.
	reachRest = 100 * time.Millisecond
	// reachTold is the look at which the log says that one has none: at the start
	// none has.
	reachTold = 10
)

// reach has what follows from it applied anew, and tells the log, when a pool's
// scheduler can be reached no more or again. It compares with what was applied:
// between two looks a pool may come and its scheduler be reached.
func (g *Gateway) reach(ctx context.Context, engine *core.Gateway, changes chan<- change, lacked *atomic.Pointer[[]string]) error {
	looks := make(map[string]int) // that found none, by pool
	for ; ctx.Err() == nil; lifecycle.Pause(ctx, reachRest) {
		applied := lacked.Load()
		if applied == nil {
			continue
		}
		lacking := engine.Unreachable()
		g.tellReach(looks, lacking)
		if slices.Equal(lacking, *applied) {
			continue
		}
		select {
		case changes <- func(*view.State) {}:
		case <-ctx.Done():
		}
	}
	return nil
}

// tellReach tells the log of pools that have had no scheduler for a while, and
// of those that have one again.
func (g *Gateway) tellReach(looks map[string]int, lacking []string) {
	for _, pool := range lacking {
		if looks[pool]++; looks[pool] == reachTold {
			g.deps.Log.Warn("no scheduler of the pool can be reached: its models are not ready", zap.String("pool", pool))
		}
	}
	for pool, n := range looks {
		if slices.Contains(lacking, pool) {
			continue
		}
		if delete(looks, pool); n >= reachTold {
			g.deps.Log.Info("a scheduler of the pool is reached again", zap.String("pool", pool))
		}
	}
}

// noteStart closes started when the start is over.
func (g *Gateway) noteStart(engine *core.Gateway) {
	select {
	case <-g.started:
	default:
		if engine.Started() {
			close(g.started)
		}
	}
}

// follow sends a bucket's changes on. A value that cannot be read is logged,
// and what was known of its key stays in force.
func follow[T nereidv1.Value](ctx context.Context, g *Gateway, name string, out chan<- change, read func(bus.Event[T]) change) error {
	bucket, err := bus.NewBucket(g.deps.Bus, name, bus.Values[T]())
	if err != nil {
		return err
	}
	for e := range bucket.Watch(ctx) {
		if e.Err != nil {
			g.deps.Log.Error("a bucket's value cannot be read", append(obs.Err(e.Err), zap.String("bucket", name), zap.String("key", e.Key))...)
			continue
		}
		select {
		case out <- read(e):
		case <-ctx.Done():
		}
	}
	return nil
}

func modelChange(e bus.Event[*nereidv1.ModelValue]) change {
	return func(s *view.State) {
		switch e.Kind {
		case bus.EventPut:
			s.SetModel(e.Key, e.Value, e.Revision)
		case bus.EventDelete:
			s.SetModel(e.Key, nil, e.Revision)
		case bus.EventCaughtUp:
			s.SetRevision(e.Revision)
		}
	}
}

// workerChanges reads what the bucket says of workers. One whose lease ends while
// its stream is up is cut off from the store alone and serves on: it is gone when
// the stream ends, too.
func (g *Gateway) workerChanges(
	ctx context.Context, group *errgroup.Group, changes chan<- change,
) func(bus.Event[*nereidv1.WorkerValue]) change {
	return func(e bus.Event[*nereidv1.WorkerValue]) change {
		if e.Kind != bus.EventDelete || !e.Expired || g.deps.Connected == nil {
			return workerChange(e)
		}
		return func(s *view.State) {
			epoch := s.Epoch(e.Key)
			stream := g.deps.Connected(epoch)
			if stream == nil {
				s.SetWorker(e.Key, nil, e.Revision)
				return
			}
			s.SetAdrift(e.Key, e.Revision)
			group.Go(func() error {
				select {
				case <-stream:
				case <-ctx.Done():
					return nil
				}
				select {
				case changes <- func(s *view.State) { s.DropAdrift(e.Key, epoch) }:
				case <-ctx.Done():
				}
				return nil
			})
		}
	}
}

func workerChange(e bus.Event[*nereidv1.WorkerValue]) change {
	return func(s *view.State) {
		switch e.Kind {
		case bus.EventPut:
			s.SetWorker(e.Key, e.Value, e.Revision)
		case bus.EventDelete:
			s.SetWorker(e.Key, nil, e.Revision)
		case bus.EventCaughtUp:
			s.SetWorkersRevision(e.Revision)
		}
	}
}

func instancesChange(e bus.Event[*nereidv1.InstancesValue]) change {
	worker, model := bus.CutKey(e.Key)
	return func(s *view.State) {
		switch e.Kind {
		case bus.EventPut:
			s.SetInstances(worker, model, e.Value, e.Revision)
		case bus.EventDelete:
			s.SetInstances(worker, model, nil, e.Revision)
		case bus.EventCaughtUp:
			s.SetInstancesRevision(e.Revision)
		}
	}
}

func leaderChange(e bus.Event[*nereidv1.LeaderValue]) change {
	return func(s *view.State) {
		if e.Kind == bus.EventPut && e.Key == leaderRole {
			s.SetComplete(e.Value.GetModelsRevision())
		}
	}
}
