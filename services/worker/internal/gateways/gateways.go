// Package gateways follows the gateways' leases, so that a worker retains nothing
// for a lost gateway.
package gateways

import (
	"context"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/obs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// Worker is the worker's end of the gateways' streams. Gateways are named by their
// incarnations.
type Worker interface {
	// Gone says that a gateway's lease has ended, or that a later incarnation has it.
	Gone(gateway uint64)
	// Back says that a gateway holds its lease, for the first time or again.
	Back(gateway uint64)
}

// Follow passes on changes of gateways to the worker until ctx is done.
func Follow(ctx context.Context, b *bus.Bus, to Worker, log *zap.Logger) error {
	bucket, err := bus.NewBucket(b, bus.Gateways, bus.Values[*nereidv1.ServiceValue]())
	if err != nil {
		return err
	}
	follow(bucket.Watch(ctx), to, log)
	return nil
}

func follow(events <-chan bus.Event[*nereidv1.ServiceValue], to Worker, log *zap.Logger) {
	present := make(map[string]uint64) // incarnations by key
	for e := range events {
		switch e.Kind {
		case bus.EventPut:
			if e.Err != nil {
				log.Error("a bucket's value cannot be read", append(obs.Err(e.Err), zap.String("bucket", bus.Gateways), zap.String("key", e.Key))...)
				continue
			}
			before, now := present[e.Key], e.Value.GetEpoch()
			if before == now {
				continue
			}
			if present[e.Key] = now; before != 0 {
				to.Gone(before)
			}
			to.Back(now)
		case bus.EventDelete:
			if before, ok := present[e.Key]; ok {
				to.Gone(before)
				delete(present, e.Key)
			}
		}
	}
}
