package dispatcher

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/plane/schedule"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/gateway/internal/requests"
)

// A scheduler whose host has vanished neither answers nor refuses: the gateway
// gives up to dial it when another holds the pool.
func TestVanishedSchedulerHoldsNobodyUp(t *testing.T) {
	b, err := bus.Open(t.Context(), bus.Config{Lease: time.Hour, Log: zaptest.NewLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := b.EnsureBuckets(t.Context()); err != nil {
		t.Fatal(err)
	}
	bucket, err := bus.NewBucket(b, bus.Leaders, bus.Values[*nereidv1.LeaderValue]())
	if err != nil {
		t.Fatal(err)
	}
	dialed := make(chan string, 100)
	d := New(Deps{
		Pool:   requests.New(1).NewPool("default", requests.DefaultBounds(), mono.New(), nil),
		Finder: control.NewFinder(b, control.PoolRole("default")), Metrics: prometheus.NewRegistry(), Log: zap.NewNop(),
		Dial: func(ctx context.Context, address string, _ uint64, _ schedule.GatewayHandler) (Session, error) {
			dialed <- address
			<-ctx.Done()
			return nil, errs.From(context.Cause(ctx))
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	for _, holder := range []string{"vanished", "next"} {
		_, err := bucket.Acquire(t.Context(), bus.Claim[*nereidv1.LeaderValue]{
			Key: control.PoolRole("default"), Replace: func(*nereidv1.LeaderValue) bool { return true },
			Value: func(epoch uint64) *nereidv1.LeaderValue {
				return &nereidv1.LeaderValue{Schema: nereidv1.Schema, Holder: holder, Epoch: epoch, Address: holder}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		for address := ""; address != holder; {
			select {
			case address = <-dialed:
			case <-time.After(time.Minute): // bounds the test
				t.Fatalf("%s is not dialed", holder)
			}
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
