package registry

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// role is the registry's key in the bucket leaders.
const role = "registry"

// releaseTimeout bounds the last write of a leadership. Unreleased, the lease ends
// by itself.
const releaseTimeout = 2 * time.Second

// elect waits for the lease and acts as the leader while it is held. The error
// says why the leadership could not begin or had to end.
func (r *Registry) elect(ctx context.Context, all *buckets) error {
	waits := ""
	lease, err := all.leaders.Acquire(ctx, bus.Claim[*nereidv1.LeaderValue]{
		Key:   role,
		Value: func(epoch uint64) *nereidv1.LeaderValue { return r.leaderValue(epoch, 0) },
		Replace: func(present *nereidv1.LeaderValue) bool {
			if r.mayReplace(present) {
				return true
			}
			if holder := present.GetHolder(); holder != waits {
				waits = holder
				r.readiness.set(true) // as a standby
				r.leader.set(nil, false)
				r.log.Info("waiting to lead", zap.String("leader", holder))
			}
			return false
		},
	})
	if err != nil {
		return err
	}
	r.epoch = lease.Epoch()
	r.readiness.set(false)
	r.log.Info("leading", zap.Uint64("epoch", lease.Epoch()))
	defer r.readiness.set(false)
	return errors.Join(r.lead(ctx, all, lease), release(ctx, lease))
}

// mayReplace reports whether a lease is left of an earlier incarnation of this replica,
// and may be replaced before it ends. That of another or a later one may not.
func (r *Registry) mayReplace(present *nereidv1.LeaderValue) bool {
	return present.GetHolder() == r.cfg.Holder && (r.epoch == 0 || present.GetEpoch() <= r.epoch)
}

// lead acts as the leader until ctx or the lease ends.
func (r *Registry) lead(ctx context.Context, all *buckets, lease *bus.Lease[*nereidv1.LeaderValue]) error {
	ctx, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel()
	watch.Go(func() { // ends with lead at the latest
		select {
		case <-lease.Lost():
			cancel()
		case <-ctx.Done():
		}
	})
	if r.cfg.Policy != "" {
		watch.Go(func() { publishPolicy(ctx, r.cfg.Policy, all.policies, r.log) })
	}
	t := newLeadership(all, r, lease.Epoch())
	t.announce = func(ctx context.Context, revision uint64) error {
		if err := lease.Set(ctx, r.leaderValue(lease.Epoch(), revision)); err != nil {
			return err
		}
		r.readiness.set(true)
		return nil
	}
	r.leader.set(t, true)
	defer r.leader.set(nil, true)
	err := t.run(ctx)
	if lost := lease.Err(); lost != nil {
		return lost
	}
	return err
}

func release(ctx context.Context, lease *bus.Lease[*nereidv1.LeaderValue]) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	return lease.Release(ctx)
}

func (r *Registry) leaderValue(epoch, revision uint64) *nereidv1.LeaderValue {
	return &nereidv1.LeaderValue{Schema: nereidv1.Schema, Holder: r.cfg.Holder, Epoch: epoch, ModelsRevision: revision, Address: r.cfg.Address}
}
