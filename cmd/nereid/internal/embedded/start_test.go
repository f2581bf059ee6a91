package embedded

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/bus"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/gateway"
)

func TestUnsettledAreTheModelsStillLoading(t *testing.T) {
	index := []gateway.IndexEntry{
		{Name: "ready", State: "READY"},
		{Name: "failed", State: "UNAVAILABLE", Reason: "no config"},
		{Name: "loads", State: "LOADING"},
		{Name: "waits"},
	}
	if diff := cmp.Diff([]string{"loads", "waits"}, unsettled(index)); diff != "" {
		t.Error(diff)
	}
}

// What a killed process had loaded is not loaded.
func TestWorkersOfAKilledProcessAreForgotten(t *testing.T) {
	dir := t.TempDir()
	open := func() (*bus.Bus, *bus.Bucket[*nereidv1.WorkerValue]) {
		b, err := bus.Open(t.Context(), bus.Config{Dir: dir, Lease: lease})
		if err != nil {
			t.Fatal(err)
		}
		workers, err := bus.NewBucket(b, bus.Workers, bus.Values[*nereidv1.WorkerValue]())
		if err := errors.Join(err, b.EnsureBuckets(t.Context())); err != nil {
			t.Fatal(err)
		}
		return b, workers
	}
	b, workers := open()
	held, err := workers.Acquire(t.Context(), bus.Claim[*nereidv1.WorkerValue]{
		Key: "worker", Value: func(epoch uint64) *nereidv1.WorkerValue {
			return &nereidv1.WorkerValue{Schema: nereidv1.Schema, WorkerId: "worker", Epoch: epoch}
		},
	})
	if err := errors.Join(err, b.Close()); err != nil {
		t.Fatal(err)
	}
	_ = held.Release(t.Context()) // the store is gone, as after a kill
	b, workers = open()
	if left, err := workers.Keys(t.Context()); err != nil || len(left) != 1 {
		t.Errorf("the killed process has left %q, %v", left, err)
	}
	if err := forgetWorkers(t.Context(), b); err != nil {
		t.Error(err)
	}
	if left, err := workers.Keys(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("%q, %v are left", left, err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}
