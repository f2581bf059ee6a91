package registry

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/state"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/internal/status"
)

// Bounds of what a look at the cluster waits for.
const (
	statusStoreTimeout     = 10 * time.Second
	statusSchedulerTimeout = 2 * time.Second
)

// Status describes the whole cluster, whether this replica leads or not. The
// reason is state_unavailable while the store does not answer.
func (r *Registry) Status(ctx context.Context) (*nereidv1.ClusterStatus, error) {
	reading, cancel := context.WithTimeoutCause(ctx, statusStoreTimeout, errs.New(errs.StateUnavailable,
		"the control plane's store has not answered for %v: see the connection to NATS; serving goes on from the last known state", statusStoreTimeout))
	defer cancel()
	seen, err := r.look(reading)
	if err != nil {
		return nil, err
	}
	if term, _, _ := r.leader.get(); term != nil {
		report := term.report.Load()
		seen.UnderReplicated, seen.Lagging = report.UnderReplicated, report.Lagging
	}
	r.askSchedulers(ctx, seen)
	return status.Of(seen), nil
}

// look reads all buckets anew, so that a replica that does not lead need not
// follow them.
func (r *Registry) look(ctx context.Context) (*status.View, error) {
	all, err := openBuckets(r.bus)
	if err != nil {
		return nil, err
	}
	registries, err := bus.NewBucket(r.bus, bus.Registries, values[*nereidv1.ServiceValue]())
	if err != nil {
		return nil, err
	}
	seen := &status.View{
		Models: make(map[string]status.Entry[*nereidv1.ModelValue]), Workers: make(map[string]status.Entry[*nereidv1.WorkerValue]),
		Leaders: make(map[string]status.Entry[*nereidv1.LeaderValue]), Behind: make(map[string]bool), Unreachable: make(map[string]string),
		Services: make(map[string]map[string]status.Entry[*nereidv1.ServiceValue]), Lost: make(map[infer.ModelRef][]string),
	}
	for _, role := range []string{status.Gateway, status.Scheduler, status.Registry} {
		seen.Services[role] = make(map[string]status.Entry[*nereidv1.ServiceValue])
	}
	instances := make(map[string]status.Entry[*nereidv1.InstancesValue])
	assignments := make(map[string]status.Entry[*nereidv1.AssignmentValue])
	err = errors.Join(
		read(ctx, all.models, seen.Models), read(ctx, all.assignments, assignments), read(ctx, all.instances, instances),
		read(ctx, all.workers, seen.Workers), read(ctx, all.leaders, seen.Leaders),
		read(ctx, all.gateways, seen.Services[status.Gateway]), read(ctx, all.schedulers, seen.Services[status.Scheduler]),
		read(ctx, registries, seen.Services[status.Registry]),
	)
	runs(seen, instances)
	assigned(seen, assignments)
	return seen, err
}

// runs takes in what the workers that are alive run.
func runs(seen *status.View, instances map[string]status.Entry[*nereidv1.InstancesValue]) {
	for _, e := range instances {
		id := e.Value.GetWorkerId()
		w, alive := seen.Workers[id]
		if !alive || e.Value.GetEpoch() != cmp.Or(w.Value.GetEpoch(), w.Revision) {
			continue // of an earlier incarnation
		}
		for _, v := range e.Value.GetVersions() {
			seen.Runs = append(seen.Runs, status.Runs{Worker: id, Version: v})
		}
	}
}

// assigned takes in what the workers that are alive should run, and what is kept
// for the return of others.
func assigned(seen *status.View, assignments map[string]status.Entry[*nereidv1.AssignmentValue]) {
	for _, e := range assignments {
		id := e.Value.GetWorkerId()
		w, alive := seen.Workers[id]
		if !alive {
			for _, v := range e.Value.GetVersions() {
				ref := state.RefOf(v.GetModel())
				seen.Lost[ref] = append(seen.Lost[ref], id)
			}
			continue
		}
		seen.Behind[id] = seen.Behind[id] || w.Value.GetAssignmentRevision() < e.Revision
		for _, v := range e.Value.GetVersions() {
			seen.Assigned = append(seen.Assigned, status.Assigned{Worker: id, Version: v})
		}
	}
}

// read puts what a bucket holds into all. A value that cannot be read is left
// out.
func read[T any](ctx context.Context, b *bus.Bucket[T], all map[string]status.Entry[T]) error {
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	for e := range b.Watch(watching) {
		switch {
		case e.Kind == bus.EventCaughtUp:
			return nil
		case e.Kind == bus.EventPut && e.Err == nil:
			all[e.Key] = status.Entry[T]{Value: e.Value, Revision: e.Revision}
		}
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return errWatchEnded
}

// askSchedulers asks the holder of each pool for its queues.
func (r *Registry) askSchedulers(ctx context.Context, seen *status.View) {
	if r.queues == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, statusSchedulerTimeout)
	defer cancel()
	var mu sync.Mutex
	var asked sync.WaitGroup
	for _, pool := range seen.Pools() {
		holder, ok := seen.Leaders[status.PoolRole(pool)]
		if !ok {
			continue
		}
		asked.Go(func() {
			list, err := r.queues(ctx, holder.Value.GetAddress())
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				seen.Unreachable[pool] = errs.From(err).Msg
				return
			}
			seen.Queues = append(seen.Queues, control.QueueStatuses(pool, list)...)
		})
	}
	asked.Wait()
}

// Queues asks the scheduler at an address, which is empty in one process, what
// waits and runs in its pool.
type Queues func(ctx context.Context, address string) ([]infer.Queue, error)
