package gateways

import (
	"testing"

	"go.uber.org/zap/zaptest"

	"github.com/nereid-serving/nereid/libs/bus"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// A gateway is gone when its lease ends, and when a later life has its key.
func TestGatewaysAreGoneWithTheirLeases(t *testing.T) {
	b, err := bus.Open(t.Context(), bus.Config{Log: zaptest.NewLogger(t)})
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
	bucket, err := bus.NewBucket(b, bus.Gateways, bus.Values[*nereidv1.ServiceValue]())
	if err != nil {
		t.Fatal(err)
	}
	live := func() *bus.Lease[*nereidv1.ServiceValue] {
		t.Helper()
		lease, err := bucket.Acquire(t.Context(), bus.Claim[*nereidv1.ServiceValue]{
			Key: "g", Replace: func(*nereidv1.ServiceValue) bool { return true },
			Value: func(epoch uint64) *nereidv1.ServiceValue {
				return &nereidv1.ServiceValue{Schema: nereidv1.Schema, Id: "g", Epoch: epoch}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		return lease
	}
	// What the bucket tells goes by here, so that each change is heard of before
	// the next one is made.
	told := make(chan bus.Event[*nereidv1.ServiceValue])
	gone, ended := make(chan uint64, 10), make(chan bool)
	go func() {
		defer close(ended)
		follow(told, func(gateway uint64) { gone <- gateway }, zaptest.NewLogger(t))
	}()
	events := bucket.Watch(t.Context())
	hear := func(until func(bus.Event[*nereidv1.ServiceValue]) bool) {
		for e := range events {
			if told <- e; until(e) {
				return
			}
		}
	}
	of := func(epoch uint64) func(bus.Event[*nereidv1.ServiceValue]) bool {
		return func(e bus.Event[*nereidv1.ServiceValue]) bool {
			return e.Kind == bus.EventPut && e.Value.GetEpoch() == epoch
		}
	}
	hear(func(e bus.Event[*nereidv1.ServiceValue]) bool { return e.Kind == bus.EventCaughtUp })
	first := live()
	hear(of(first.Epoch()))
	second := live()
	hear(of(second.Epoch()))
	if epoch := <-gone; epoch != first.Epoch() {
		t.Errorf("gateway %d is gone, want %d", epoch, first.Epoch())
	}
	if err := second.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	hear(func(e bus.Event[*nereidv1.ServiceValue]) bool { return e.Kind == bus.EventDelete })
	if epoch := <-gone; epoch != second.Epoch() {
		t.Errorf("gateway %d is gone, want %d", epoch, second.Epoch())
	}
	close(told)
	<-ended
	if n := len(gone); n > 0 {
		t.Errorf("%d more gateways are gone", n)
	}
	_ = first.Release(t.Context()) // it has lost its key
}
