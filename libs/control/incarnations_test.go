package control

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/bus"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// report is what a watch of leases says.
type report struct {
	ID          string
	Incarnation uint64
}

func TestLeasesAreReportedAsIncarnations(t *testing.T) {
	b, err := bus.Open(t.Context(), bus.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.EnsureBuckets(t.Context()); err != nil {
		t.Fatal(err)
	}
	workers, err := bus.NewBucket(b, bus.Workers, bus.Values[*nereidv1.WorkerValue]())
	if err != nil {
		t.Fatal(err)
	}
	reports := make(chan report, 64)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	watch := watchLeases[*nereidv1.WorkerValue](b, bus.Workers)
	go func() { ended <- watch(ctx, func(id string, n uint64) { reports <- report{id, n} }) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	// next skips renewals, which report the same again.
	next := func(before report) report {
		for {
			if r := <-reports; r != before {
				return r
			}
		}
	}
	lease, err := workers.Acquire(t.Context(), bus.Claim[*nereidv1.WorkerValue]{
		Key: "w1",
		Value: func(epoch uint64) *nereidv1.WorkerValue {
			return &nereidv1.WorkerValue{Schema: nereidv1.Schema, Epoch: epoch}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	held := report{"w1", lease.Epoch()}
	if got := next(report{}); got != held {
		t.Errorf("reported %v, want %v", got, held)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := next(held); got != (report{"w1", 0}) {
		t.Errorf("reported %v after the release", got)
	}
}

// An incarnation is its owner's while that holds its lease as it.
func TestOwnersOfIncarnations(t *testing.T) {
	i := newIncarnations(func(_ context.Context, set func(string, uint64)) error {
		set("a", 1)
		set("b", 2)
		set("c", 3)
		set("b", 4) // the next incarnation
		set("c", 0) // gone
		set("d", 0) // never there
		return nil
	})
	if err := i.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := make(map[uint64]string)
	for n := range uint64(6) {
		if id, known := i.Owner(n); known {
			got[n] = id
		}
	}
	if diff := cmp.Diff(map[uint64]string{1: "a", 4: "b"}, got); diff != "" {
		t.Errorf("owners (-want +got):\n%s", diff)
	}
}
