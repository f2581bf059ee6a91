package worker

import (
	"context"
	"slices"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/obs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/worker/internal/reconcile"
)

// registration is the worker's key.
type registration struct {
	*bus.Registration[*nereidv1.WorkerValue]
	bucket *bus.Bucket[*nereidv1.WorkerValue]
}

// register acquires the worker's key, whose epoch is the worker's incarnation. A value under its id belongs to an
// earlier incarnation, unless its epoch is later.
func (w *Worker) register(ctx context.Context) (*registration, error) {
	bucket, err := bus.NewBucket(w.deps.Bus, bus.Workers, bus.Values[*nereidv1.WorkerValue]())
	if err != nil {
		return nil, err
	}
	r, err := bucket.Register(ctx, bus.Claim[*nereidv1.WorkerValue]{
		Key:     w.config.ID,
		Value:   func(epoch uint64) *nereidv1.WorkerValue { return w.value(epoch, reconcile.Revisions{}) },
		Replace: func(*nereidv1.WorkerValue) bool { return true },
		Epoch:   (*nereidv1.WorkerValue).GetEpoch,
	})
	if err != nil {
		return nil, err
	}
	return &registration{r, bucket}, nil
}

// alone reports whether no other worker than the one with this id has a lease. It returns false if that cannot be
// determined. The worker's own lease may have expired on a machine that stalled.
func (r *registration) alone(ctx context.Context, id string) bool {
	keys, err := r.bucket.Keys(ctx)
	return err == nil && !slices.ContainsFunc(keys, func(key string) bool { return key != id })
}

// followModels passes changes of the bucket models to the reconciler until ctx is done. A value that cannot be read
// is logged, and the last known value of its key stays in force. ready is called when the worker may have become
// ready.
func (w *Worker) followModels(ctx context.Context, r *reconcile.Reconciler, ready func()) error {
	bucket, err := bus.NewBucket(w.deps.Bus, bus.Models, bus.Values[*nereidv1.ModelValue]())
	if err != nil {
		return err
	}
	defer w.modelsKnown.Store(false)
	for e := range bucket.Watch(ctx) {
		switch {
		case e.Err != nil:
			w.unreadable(bus.Models, e.Key, e.Err)
		case e.Kind == bus.EventPut:
			versions := versionsOf(e.Value)
			r.Change(ctx, func(d *reconcile.Desired) { d.SetModel(e.Key, versions, e.Revision) })
		case e.Kind == bus.EventDelete:
			r.Change(ctx, func(d *reconcile.Desired) { d.SetModel(e.Key, nil, e.Revision) })
		case e.Kind == bus.EventCaughtUp:
			r.Change(ctx, func(d *reconcile.Desired) { d.ModelsKnown(e.Revision) })
			w.modelsKnown.Store(true)
			ready()
		}
	}
	return nil
}

// followAssignments passes the worker's own assignments to the reconciler; for ready see [Worker.followModels].
func (w *Worker) followAssignments(ctx context.Context, r *reconcile.Reconciler, ready func()) error {
	bucket, err := bus.NewBucket(w.deps.Bus, bus.Assignments, bus.Values[*nereidv1.AssignmentValue]())
	if err != nil {
		return err
	}
	events, err := bucket.WatchOwner(ctx, w.config.ID)
	if err != nil {
		return err
	}
	for e := range events {
		switch {
		case e.Kind == bus.EventCaughtUp:
			r.Change(ctx, (*reconcile.Desired).AssignmentKnown)
			w.assignmentKnown.Store(true)
			ready()
		case e.Kind == bus.EventLost:
			r.Change(ctx, (*reconcile.Desired).Orphan)
		case e.Err != nil:
			w.unreadable(bus.Assignments, e.Key, e.Err)
		default:
			w.assign(ctx, r, e)
		}
	}
	return nil
}

// assign applies an event about a model's assignment, or about the head.
func (w *Worker) assign(ctx context.Context, r *reconcile.Reconciler, e bus.Event[*nereidv1.AssignmentValue]) {
	_, key := bus.CutKey(e.Key)
	model, deleted := infer.ParseModelID(key), e.Kind == bus.EventDelete
	var a reconcile.Assignment
	if !deleted {
		a = assignmentOf(e.Value, e.Revision)
	}
	r.Change(ctx, func(d *reconcile.Desired) {
		accepted := true
		switch {
		case key == head && deleted:
			d.DropHead(e.Revision)
		case key == head:
			accepted = d.SetHead(reconcile.Head{Revision: e.Revision, LeaderEpoch: a.LeaderEpoch})
		case deleted:
			d.Unassign(model, e.Revision)
		default:
			accepted = d.Assign(model, a)
		}
		if !accepted {
			w.deps.Log.Warn("assignment of a deposed leader refused", zap.Uint64("epoch", a.LeaderEpoch), zap.String("key", e.Key))
		}
	})
}

// head takes the place of the model in the key of a worker's head.
const head = ""

func (w *Worker) unreadable(bucket, key string, err error) {
	w.deps.Log.Error("a bucket's value cannot be used", append(obs.Err(err), zap.String("bucket", bucket), zap.String("key", key))...)
}
