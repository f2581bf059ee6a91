package worker

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/instance"
	"github.com/nereid-serving/nereid/services/worker/internal/reconcile"
)

// instances opens and closes instances, and maintains their metrics.
type instances struct {
	executor *instance.Executor
	metrics  *metrics
	stuck    atomic.Bool // an instance did not end
}

// Open opens an instance.
func (i *instances) Open(spec reconcile.InstanceSpec) infer.InstanceID {
	return i.executor.Open(instance.Spec{
		Model: spec.Model, Name: spec.Name, Device: spec.Device, Passive: spec.Passive, Instance: spec.Instance, Warmed: spec.Warmed,
		Iterative: spec.Iterative, Observe: i.metrics.execution(spec.Model), Unready: spec.Unready,
	})
}

// Close closes an instance.
func (i *instances) Close(ctx context.Context, id infer.InstanceID) error {
	err := i.executor.Close(ctx, id)
	if err != nil {
		i.stuck.Store(true)
	}
	return err
}

func (w *Worker) loaded(v backend.Version, took time.Duration, err error) {
	w.metrics.loaded(v, took, err)
	if err != nil {
		w.deps.Log.Error(fmt.Sprintf("failed to load '%s' version %d", v.Ref.Name, v.Ref.Version), append(obs.Model(v.Ref), obs.Err(err)...)...)
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
