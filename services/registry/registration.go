package registry

import (
	"context"
	"sync/atomic"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/obs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// readinessFlag is what others see of this replica, whether it leads or not. Its
// methods are safe for concurrent use.
type readinessFlag struct {
	ready   atomic.Bool
	changed chan struct{} // has room for one
}

func newReadinessFlag() *readinessFlag { return &readinessFlag{changed: make(chan struct{}, 1)} }

func (p *readinessFlag) set(ready bool) {
	if p.ready.Swap(ready) == ready {
		return
	}
	select {
	case p.changed <- struct{}{}:
	default: // who looks sees this too
	}
}

// keepRegistered keeps the replica's lease until ctx is done. Nothing depends on it but
// what people see, so that troubles are logged and tried again, but for a later
// registry of the same id.
func (r *Registry) keepRegistered(ctx context.Context) error {
	for ctx.Err() == nil {
		err := r.register(ctx)
		if errs.Of(err) == errs.AlreadyExists {
			return err
		}
		if err != nil && ctx.Err() == nil {
			r.log.Warn("this replica is not listed", obs.Err(err)...)
			lifecycle.Pause(ctx, r.cfg.Retry)
		}
	}
	return nil
}

func (r *Registry) register(ctx context.Context) error {
	bucket, err := bus.NewBucket(r.bus, bus.Registries, bus.Values[*nereidv1.ServiceValue]())
	if err != nil {
		return err
	}
	own, err := bucket.Register(ctx, bus.Claim[*nereidv1.ServiceValue]{
		Key: r.cfg.Holder, Value: r.serviceValue, Replace: func(*nereidv1.ServiceValue) bool { return true },
		Epoch: (*nereidv1.ServiceValue).GetEpoch,
	})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- own.Run(ctx) }()
	for {
		select {
		case err := <-ended:
			return err
		case <-r.readiness.changed:
		}
		if err := own.Set(ctx, r.serviceValue(own.Epoch())); err != nil && ctx.Err() == nil {
			r.log.Warn("this replica's readiness is not published yet", obs.Err(err)...)
		}
	}
}

func (r *Registry) serviceValue(epoch uint64) *nereidv1.ServiceValue {
	state := nereidv1.State_STATE_LOADING
	if r.Ready() {
		state = nereidv1.State_STATE_READY
	}
	return &nereidv1.ServiceValue{
		Schema: nereidv1.Schema, Id: r.cfg.Holder, Epoch: epoch, Address: r.cfg.Address, Version: r.cfg.Version, State: state,
	}
}
