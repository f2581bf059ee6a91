package scheduler

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/obs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/scheduler/core"
	"github.com/nereid-serving/nereid/services/scheduler/internal/view"
)

type registration = bus.Registration[*nereidv1.ServiceValue]

// register acquires the scheduler's own key. A value under its id is left over from an earlier run.
func (s *Scheduler) register(ctx context.Context) (*registration, error) {
	bucket, err := bus.NewBucket(s.deps.Bus, bus.Schedulers, bus.Values[*nereidv1.ServiceValue]())
	if err != nil {
		return nil, err
	}
	return bucket.Register(ctx, bus.Claim[*nereidv1.ServiceValue]{
		Key:     s.config.ID,
		Value:   func(epoch uint64) *nereidv1.ServiceValue { return s.value(epoch, report{}) },
		Replace: func(*nereidv1.ServiceValue) bool { return true },
		Epoch:   (*nereidv1.ServiceValue).GetEpoch,
	})
}

// report is what the scheduler publishes about itself under its own key.
type report struct {
	applied uint64
	load    core.Load
}

func (s *Scheduler) value(epoch uint64, r report) *nereidv1.ServiceValue {
	state := nereidv1.State_STATE_LOADING
	if s.Ready() {
		state = nereidv1.State_STATE_READY
	}
	return &nereidv1.ServiceValue{
		Schema: nereidv1.Schema, Id: s.config.ID, Epoch: epoch, State: state,
		AppliedRevision: r.applied, Address: s.config.Address, Version: s.config.Version,
		Load: r.load.Full, Waiting: uint64(r.load.Waiting), Running: uint64(r.load.Running),
	}
}

// tellLoad is how often the load is published if it changes.
const tellLoad = 2 * time.Second

// watch keeps the loop's models in sync with the bucket until ctx is done, and publishes the applied revision and the
// load.
func (s *Scheduler) watch(ctx context.Context, r *registration) error {
	bucket, err := bus.NewBucket(s.deps.Bus, bus.Models, bus.Values[*nereidv1.ModelValue]())
	if err != nil {
		return err
	}
	models, events := view.New(s.loop, s.config.Pool), bucket.Watch(ctx)
	tick := time.NewTicker(tellLoad)
	defer tick.Stop()
	for told := (report{}); ; {
		next := told
		select {
		case e, ok := <-events:
			if !ok {
				return nil
			}
			s.take(models, e)
			if e.Kind == bus.EventPut || e.Kind == bus.EventDelete {
				s.costs.know(e.Key, e.Value)
			}
			if len(events) > 0 {
				continue // one report for all pending events
			}
			next.applied = e.Revision
		case <-tick.C:
			if next.load = s.load(); next == told {
				continue
			}
		}
		told = next
		if err := r.Set(ctx, s.value(r.Epoch(), told)); err != nil && ctx.Err() == nil {
			s.deps.Log.Warn("the scheduler's state is not published yet", obs.Err(err)...)
		}
	}
}

// load returns the pool's load, if this scheduler leads it.
func (s *Scheduler) load() core.Load {
	if _, leads := s.Leads(); !leads {
		return core.Load{}
	}
	return s.loop.Load()
}

func (s *Scheduler) take(models *view.View, e bus.Event[*nereidv1.ModelValue]) {
	if err := apply(models, e); err != nil {
		s.deps.Log.Error("a model's value cannot be used", append(obs.Err(err), zap.String("model", e.Key))...)
	}
	if e.Kind == bus.EventCaughtUp && !s.ready.Swap(true) {
		close(s.known)
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
