package gateways

import (
	"cmp"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"go.uber.org/zap/zaptest"

	"github.com/nereid-serving/nereid/libs/bus"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// heard is what a worker was told.
type heard struct {
	gateway uint64
	back    bool
}

type listener chan heard

func (l listener) Gone(gateway uint64) { l <- heard{gateway, false} }
func (l listener) Back(gateway uint64) { l <- heard{gateway, true} }

// A gateway is gone when its lease ends, and when a later life has its key. One
// that takes its lease again is back.
func TestGatewaysAreGoneWithTheirLeases(t *testing.T) {
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
	bucket, err := bus.NewBucket(b, bus.Gateways, bus.Values[*nereidv1.ServiceValue]())
	if err != nil {
		t.Fatal(err)
	}
	live := func(as uint64) *bus.Lease[*nereidv1.ServiceValue] {
		t.Helper()
		lease, err := bucket.Acquire(t.Context(), bus.Claim[*nereidv1.ServiceValue]{
			Key: "g", Replace: func(*nereidv1.ServiceValue) bool { return true },
			Value: func(epoch uint64) *nereidv1.ServiceValue {
				return &nereidv1.ServiceValue{Schema: nereidv1.Schema, Id: "g", Epoch: cmp.Or(as, epoch)}
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
	worker, ended := make(listener, 10), make(chan bool)
	go func() {
		defer close(ended)
		follow(told, worker, zaptest.NewLogger(t))
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
	first := live(0)
	hear(of(first.Epoch()))
	second := live(0)
	hear(of(second.Epoch()))
	if err := second.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	hear(func(e bus.Event[*nereidv1.ServiceValue]) bool { return e.Kind == bus.EventDelete })
	again := live(second.Epoch())
	hear(of(second.Epoch()))
	close(told)
	<-ended
	close(worker)
	var got []heard
	for h := range worker {
		got = append(got, h)
	}
	one, two := first.Epoch(), second.Epoch()
	want := []heard{{one, true}, {one, false}, {two, true}, {two, false}, {two, true}}
	if diff := gocmp.Diff(want, got, gocmp.AllowUnexported(heard{})); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	_ = again.Release(t.Context())
	_ = first.Release(t.Context()) // it has lost its key
}
