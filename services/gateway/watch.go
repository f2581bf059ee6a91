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

// register acquires the gateway's key, whose epoch becomes the incarnation. It replaces a value under the same
// id, which an earlier incarnation left.
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

// state is the readiness that the lease shows: unloading once the shutdown starts.
func (g *Gateway) state() nereidv1.State {
	switch engine := g.engine.Load(); {
	case engine != nil && engine.ShuttingDown():
		return nereidv1.State_STATE_UNLOADING
	case g.Ready():
		return nereidv1.State_STATE_READY
	}
	return nereidv1.State_STATE_LOADING
}

// backlog bounds the changes that wait for the next snapshot.
const backlog = 1024

// change applies an event of a bucket to the view.
type change func(*view.State)

// watch updates the engine's snapshot from the buckets until ctx is done.
func (g *Gateway) watch(ctx context.Context, engine *core.Gateway, r *registration) error {
	changes := make(chan change, backlog)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return follow(ctx, g, bus.Models, changes, modelChange) })
	group.Go(func() error { return follow(ctx, g, bus.Workers, changes, g.workerChanges(ctx, group, changes)) })
	group.Go(func() error { return follow(ctx, g, bus.Instances, changes, instancesChange) })
	group.Go(func() error { return follow(ctx, g, bus.Leaders, changes, leaderChange) })
	applied := new(atomic.Pointer[[]string]) // the unreachable pools of the last snapshot
	group.Go(func() error { return g.apply(ctx, engine, r, changes, applied) })
	if g.deps.Reachable != nil {
		group.Go(func() error { return g.reach(ctx, engine, changes, applied) })
	}
	return group.Wait()
}

// apply owns the view's state: it applies all waiting changes and then updates
// the snapshot once.
func (g *Gateway) apply(
	ctx context.Context, engine *core.Gateway, r *registration, changes <-chan change, applied *atomic.Pointer[[]string],
) error {
	state, shutdown := view.NewState(), engine.ShutdownBegun()
	var superseded <-chan struct{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case c := <-changes:
			c(state)
		case <-shutdown:
			shutdown = nil // published below
		case <-superseded:
		case <-g.policy.changed: // may change readiness, which the lease shows
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
		before := engine.Snapshot()
		unreachable := engine.Update(snapshot)
		g.announceModels(before, snapshot)
		applied.Store(&unreachable)
		g.meters.Prune(snapshot.Models())
		g.policy.costs.Retain(snapshot.Has)
		g.noteStart(engine)
		// While requests of an ensemble still need a replaced version for later steps, do not publish the
		// revision: the registry waits for it, up to a limit, before it gives the old version up.
		if superseded = engine.Superseded(); superseded != nil && shutdown != nil {
			continue
		}
		workers, instances := state.Observed()
		if err := r.Set(ctx, g.value(r.Epoch(), snapshot.Revision, workers, instances)); err != nil && ctx.Err() == nil {
			g.deps.Log.Warn("applied revision is not published yet", obs.Err(err)...)
		}
		lifecycle.Pause(ctx, snapshotRest*time.Duration(snapshot.Len()))
	}
}

// snapshotRest is the minimum pause between snapshots, per model: while a thousand models load, changes arrive
// continuously.
const snapshotRest = 2 * time.Microsecond

const (
	// reachRest is the interval of probes for unreachable pools.
	reachRest = 100 * time.Millisecond
	// reachLogged is the consecutive failed probe that is logged; earlier ones are not, since at the start no
	// pool is reachable.
	reachLogged = 10
)

// reach triggers a new snapshot and logs when a pool becomes unreachable or reachable. It compares with the
// last snapshot rather than the last probe: between two probes a pool may appear and its scheduler connect.
func (g *Gateway) reach(ctx context.Context, engine *core.Gateway, changes chan<- change, last *atomic.Pointer[[]string]) error {
	failed := make(map[string]int) // probes in a row, by pool
	for ; ctx.Err() == nil; lifecycle.Pause(ctx, reachRest) {
		applied := last.Load()
		if applied == nil {
			continue
		}
		unreachable := engine.Unreachable()
		g.logReach(failed, unreachable)
		if slices.Equal(unreachable, *applied) {
			continue
		}
		select {
		case changes <- func(*view.State) {}:
		case <-ctx.Done():
		}
	}
	return nil
}

// logReach logs pools that stay unreachable and pools that are reachable again.
func (g *Gateway) logReach(failed map[string]int, unreachable []string) {
	for _, pool := range unreachable {
		if failed[pool]++; failed[pool] == reachLogged {
			g.deps.Log.Warn("no scheduler of the pool is reachable: its models are not ready", zap.String("pool", pool))
		}
	}
	for pool, n := range failed {
		if slices.Contains(unreachable, pool) {
			continue
		}
		if delete(failed, pool); n >= reachLogged {
			g.deps.Log.Info("a scheduler of the pool is reachable again", zap.String("pool", pool))
		}
	}
}

// noteStart closes started once the start is over.
func (g *Gateway) noteStart(engine *core.Gateway) {
	select {
	case <-g.started:
	default:
		if engine.Started() {
			close(g.started)
		}
	}
}

// follow forwards a bucket's changes. It logs a value that it cannot read, and the key's previous value stays.
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

// workerChanges reads events of the bucket workers. A worker whose lease expires while its stream is up has
// only lost the store and keeps serving; it counts as lost once its stream ends too.
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
			s.SetLeaseExpired(e.Key, e.Revision)
			group.Go(func() error {
				select {
				case <-stream:
				case <-ctx.Done():
					return nil
				}
				select {
				case changes <- func(s *view.State) { s.DropExpired(e.Key, epoch) }:
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
