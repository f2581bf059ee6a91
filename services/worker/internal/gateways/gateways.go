// Package gateways tells a worker which gateways are gone, so that nothing is
// kept for them any more.
package gateways

import (
	"context"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/obs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// Follow calls gone with the incarnation of each gateway whose lease ends, or
// passes to a later life, until ctx is done.
func Follow(ctx context.Context, b *bus.Bus, gone func(gateway uint64), log *zap.Logger) error {
	bucket, err := bus.NewBucket(b, bus.Gateways, bus.Values[*nereidv1.ServiceValue]())
	if err != nil {
		return err
	}
	follow(bucket.Watch(ctx), gone, log)
	return nil
}

func follow(events <-chan bus.Event[*nereidv1.ServiceValue], gone func(gateway uint64), log *zap.Logger) {
	present := make(map[string]uint64) // incarnations by key
	for e := range events {
		switch e.Kind {
		case bus.EventPut:
			if e.Err != nil {
				log.Error("a bucket's value cannot be read", append(obs.Err(e.Err), zap.String("bucket", bus.Gateways), zap.String("key", e.Key))...)
				continue
			}
			if before, ok := present[e.Key]; ok && before != e.Value.GetEpoch() {
				gone(before)
			}
			present[e.Key] = e.Value.GetEpoch()
		case bus.EventDelete:
			if before, ok := present[e.Key]; ok {
				gone(before)
				delete(present, e.Key)
			}
		}
	}
}
