package worker

import (
	"context"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/instance"
	"github.com/nereid-serving/nereid/services/worker/internal/procs"
	"github.com/nereid-serving/nereid/services/worker/internal/reconcile"
)

// lanes opens instances with their threads and metrics.
type lanes struct {
	executor *instance.Executor
	threads  *procs.Procs
	metrics  *metrics
	stuck    atomic.Bool // an instance did not end
}

// Open opens an instance.
func (l *lanes) Open(lane reconcile.Lane) infer.InstanceID {
	l.threads.Add(1)
	return l.executor.Open(instance.Spec{
		Model: lane.Model, Name: lane.Name, Device: lane.Device, Passive: lane.Passive, Instance: lane.Instance,
		Observe: l.metrics.execution(lane.Model),
	})
}

// Close closes an instance.
func (l *lanes) Close(ctx context.Context, id infer.InstanceID) error {
	err := l.executor.Close(ctx, id)
	if err != nil {
		l.stuck.Store(true)
		return err // it still has its thread
	}
	l.threads.Add(-1)
	return nil
}

func (w *Worker) loaded(v backend.Version, took time.Duration, err error) {
	w.metrics.loaded(v, took, err)
	if err != nil {
		w.deps.Log.Error("model not loaded", append(obs.Model(v.Ref), obs.Err(err)...)...)
		return
	}
	w.deps.Log.Info("model loaded", append(obs.Model(v.Ref), zap.Duration("took", took))...)
}

func (w *Worker) retried(v backend.Version, took time.Duration, err error) {
	w.metrics.loaded(v, took, err)
	w.deps.Log.Error("model not loaded: trying again", append(obs.Model(v.Ref), obs.Err(err)...)...)
}

func (w *Worker) failed(ref infer.ModelRef, err error) {
	w.deps.Log.Error("instances of a model are not as they should be", append(obs.Model(ref), obs.Err(err)...)...)
}
