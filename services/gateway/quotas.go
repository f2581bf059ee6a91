package gateway

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/obs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/gateway/internal/tenants"
)

const (
	// quotaRound is how often gateways reconcile their shares of the tenants' limits. quotaRest is the shortest
	// interval while requests wait for a share.
	quotaRound = 100 * time.Millisecond
	quotaRest  = 2 * time.Millisecond
	// quotaTries is how often a write is attempted when other writes conflict with it.
	quotaTries = 5
	// quotaGrace is how long a stored value outlives the time at which its limits are full again, since the
	// gateways' clocks differ.
	quotaGrace = 2 * time.Second
	// quotaTimeout bounds the reconciliation of one tenant's limits.
	quotaTimeout = 2 * time.Second
)

// quotas shares the tenants' limits with the other gateways through the bucket quotas: a gateway lets requests
// use only what it has withdrawn from that bucket.
type quotas struct {
	tenants *tenants.Tenants
	bucket  *bus.Bucket[*nereidv1.QuotaValue]
	others  atomic.Int64 // number of gateways, including this one
	short   <-chan struct{}
}

// shareQuotas reconciles the tenants' limits with the other gateways until ctx is done.
func (g *Gateway) shareQuotas(ctx context.Context, short <-chan struct{}) error {
	bucket, err := bus.NewBucket(g.deps.Bus, bus.Quotas, bus.Values[*nereidv1.QuotaValue]())
	if err != nil {
		return err
	}
	leases, err := bus.NewBucket(g.deps.Bus, bus.Gateways, bus.Values[*nereidv1.ServiceValue]())
	if err != nil {
		return err
	}
	q := &quotas{tenants: g.policy.tenants, bucket: bucket, short: short}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { q.count(ctx, leases); return nil })
	group.Go(func() error { q.run(ctx, g); return nil })
	return group.Wait()
}

// count counts the gateways.
func (q *quotas) count(ctx context.Context, leases *bus.Bucket[*nereidv1.ServiceValue]) {
	here := make(map[string]bool)
	for e := range leases.Watch(ctx) {
		switch e.Kind {
		case bus.EventPut:
			here[e.Key] = true
		case bus.EventDelete:
			delete(here, e.Key)
		}
		q.others.Store(int64(len(here)))
	}
}

func (q *quotas) run(ctx context.Context, g *Gateway) {
	tick := time.NewTicker(quotaRound)
	defer tick.Stop()
	last, failing := time.Now(), false
	for {
		select {
		case <-tick.C:
		case <-q.short:
			lifecycle.Pause(ctx, quotaRest)
		case <-ctx.Done():
			_ = q.lease(context.WithoutCancel(ctx), 0, 0) // what is not returned refills with time
			return
		}
		now := time.Now()
		err := q.lease(ctx, max(int(q.others.Load()), 1), now.Sub(last))
		last = now
		if err != nil && !failing && ctx.Err() == nil {
			g.deps.Log.Warn("limits of tenants are not shared with the other gateways: each gives its part", obs.Err(err)...)
		}
		failing = err != nil
	}
}

// lease reconciles this gateway's share of its tenants' limits, given the number of gateways.
func (q *quotas) lease(ctx context.Context, gateways int, since time.Duration) error {
	return q.tenants.Lease(gateways, since, func(tenant string, wanted []tenants.Balance) ([]tenants.Grant, error) {
		return q.settle(ctx, tenant, wanted)
	})
}

// settle withdraws the wanted amounts from what is left for all gateways, by compare-and-set.
func (q *quotas) settle(ctx context.Context, tenant string, wanted []tenants.Balance) ([]tenants.Grant, error) {
	ctx, cancel := context.WithTimeout(ctx, quotaTimeout)
	defer cancel()
	for try := 1; ; try++ {
		entry, err := q.bucket.Get(ctx, tenant)
		if err != nil && !errors.Is(err, bus.ErrNotFound) {
			return nil, err
		}
		value, granted, whole := settled(entry.Value, wanted, time.Now())
		if entry.Revision == 0 {
			_, err = q.bucket.CreateFor(ctx, tenant, value, whole+quotaGrace)
		} else {
			_, err = q.bucket.UpdateFor(ctx, tenant, value, entry.Revision, whole+quotaGrace)
		}
		switch {
		case err == nil:
			return granted, nil
		case !errors.Is(err, bus.ErrConflict) || try == quotaTries:
			return nil, err
		}
	}
}

// settled returns the value after the wanted amounts are withdrawn, the amounts granted, and the time until all
// limits are full again. From then on the value means the same as its absence.
func settled(before *nereidv1.QuotaValue, wanted []tenants.Balance, now time.Time) (value *nereidv1.QuotaValue, granted []tenants.Grant, whole time.Duration) {
	value = &nereidv1.QuotaValue{Schema: nereidv1.Schema}
	for i := range wanted {
		b := &wanted[i]
		level := b.Full(now)
		for _, m := range before.GetMeters() {
			if m.GetName() == b.Name() {
				level = tenants.Level{Left: m.GetLeft(), At: time.Unix(0, m.GetAtUnixNs())}
			}
		}
		granted = append(granted, b.Take(&level, now))
		whole = max(whole, b.Whole(level, now))
		value.Meters = append(value.Meters, &nereidv1.QuotaMeter{Name: b.Name(), Left: level.Left, AtUnixNs: level.At.UnixNano()})
	}
	return value, granted, whole
}
