package scheduler

import (
	"context"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/obs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/scheduler/internal/view"
)

type registration = bus.Registration[*nereidv1.ServiceValue]

// register takes the pool's lease. A value under the pool's name is that of an
// earlier life of this scheduler, which its loss fences off.
func (s *Scheduler) register(ctx context.Context) (*registration, error) {
	bucket, err := bus.NewBucket(s.deps.Bus, bus.Schedulers, bus.Values[*nereidv1.ServiceValue]())
	if err != nil {
		return nil, err
	}
	return bucket.Register(ctx, bus.Claim[*nereidv1.ServiceValue]{
		Key:     s.config.Pool,
		Value:   func(epoch uint64) *nereidv1.ServiceValue { return s.value(epoch, 0) },
		Replace: func(*nereidv1.ServiceValue) bool { return true },
	})
}

func (s *Scheduler) value(epoch, applied uint64) *nereidv1.ServiceValue {
	return &nereidv1.ServiceValue{Schema: nereidv1.Schema, Id: s.config.Pool, Epoch: epoch, AppliedRevision: applied}
}

// watch keeps the loop's models in step with the bucket until ctx is done.
func (s *Scheduler) watch(ctx context.Context, r *registration) error {
	bucket, err := bus.NewBucket(s.deps.Bus, bus.Models, bus.Values[*nereidv1.ModelValue]())
	if err != nil {
		return err
	}
	models, events := view.New(s.loop), bucket.Watch(ctx)
	for e := range events {
		s.take(models, e)
		if len(events) > 0 {
			continue // one report for all that have come
		}
		if err := r.Set(ctx, s.value(r.Epoch(), e.Revision)); err != nil && ctx.Err() == nil {
			s.deps.Log.Warn("applied revision is not published yet", obs.Err(err)...)
		}
	}
	return nil
}

func (s *Scheduler) take(models *view.View, e bus.Event[*nereidv1.ModelValue]) {
	if err := apply(models, e); err != nil {
		s.deps.Log.Error("a model's value cannot be used", append(obs.Err(err), zap.String("model", e.Key))...)
	}
	if e.Kind == bus.EventCaughtUp {
		s.ready.Store(true)
	}
}

func apply(models *view.View, e bus.Event[*nereidv1.ModelValue]) error {
	switch {
	case e.Err != nil:
		return e.Err
	case e.Kind == bus.EventPut:
		return models.Set(e.Key, e.Value)
	case e.Kind == bus.EventDelete:
		return models.Set(e.Key, nil)
	}
	return nil
}
