package control_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// scheduler has counts of some model versions.
type scheduler struct {
	deposed bool
	counts  map[infer.ModelRef]infer.Statistics
	queues  []infer.Queue
}

func (s *scheduler) Statistics(_ context.Context, refs []infer.ModelRef) ([]infer.Statistics, error) {
	if s.deposed {
		return nil, errs.New(errs.StateUnavailable, "another scheduler holds the pool")
	}
	list := make([]infer.Statistics, len(refs))
	for i, ref := range refs {
		list[i] = s.counts[ref]
	}
	return list, nil
}

func (s *scheduler) Queues(context.Context) ([]infer.Queue, error) { return s.queues, nil }

func (s *scheduler) register(r grpc.ServiceRegistrar) {
	control.RegisterPool(r, "default", s, func(error) {})
}

func counted() infer.Statistics {
	tally := func(n uint64) infer.Tally { return infer.Tally{Count: n, Time: time.Duration(n) * 1001} }
	return infer.Statistics{
		LastInference: time.Unix(1_700_000_000, 12_345), Inferences: 1, Executions: 2, Success: tally(3), Fail: tally(4),
		Queue: tally(5), Input: tally(6), Infer: tally(7), Output: tally(8), CacheHit: tally(9), CacheMiss: tally(10),
		Batches: []infer.BatchStatistics{{Size: 4, Input: tally(11), Infer: tally(12), Output: tally(13)}, {Size: 8}},
	}
}

func TestStatisticsAndQueuesComeFromTheHolderOfThePool(t *testing.T) {
	r := newRole(t, control.PoolRole("default"))
	known := infer.ModelRef{Namespace: "/models", Name: "m", Version: 3, Generation: 7}
	deposed, holder := &scheduler{deposed: true}, &scheduler{
		counts: map[infer.ModelRef]infer.Statistics{known: counted()},
		queues: []infer.Queue{{Model: known, Waiting: 5, Running: 2, Oldest: 7 * time.Millisecond}},
	}
	at, _ := serve(t, "tcp", "127.0.0.1:0", deposed.register)
	r.give("deposed", at)
	client := control.NewPoolClient(r.finder, control.Options{Timeout: patience})
	t.Cleanup(client.Close)
	asked := make(chan []infer.Statistics)
	go func() {
		list, err := client.Statistics(t.Context(), []infer.ModelRef{{Name: "unknown", Version: 1}, known})
		if err != nil {
			t.Error(err)
		}
		asked <- list
	}()
	at, _ = serve(t, "tcp", "127.0.0.1:0", holder.register)
	r.give("holder", at)
	if diff := cmp.Diff([]infer.Statistics{{}, counted()}, <-asked); diff != "" {
		t.Errorf("the counts (-want +got):\n%s", diff)
	}
	queues, err := client.Queues(t.Context())
	if diff := cmp.Diff(holder.queues, queues); diff != "" || err != nil {
		t.Errorf("the queues: %v (-want +got):\n%s", err, diff)
	}
}

func TestWithoutASchedulerCallsFail(t *testing.T) {
	r := newRole(t, control.PoolRole("default"))
	client := control.NewPoolClient(r.finder, control.Options{Timeout: time.Millisecond})
	t.Cleanup(client.Close)
	if _, err := client.Statistics(t.Context(), nil); errs.Of(err) != errs.StateUnavailable {
		t.Errorf("Statistics = %v", err)
	}
	if _, err := client.Queues(t.Context()); errs.Of(err) != errs.StateUnavailable {
		t.Errorf("Queues = %v", err)
	}
}

// The statistics of many models are one response, of any size.
func TestStatisticsOfManyModels(t *testing.T) {
	r := newRole(t, control.PoolRole("default"))
	refs := make([]infer.ModelRef, 60_000)
	counts := make(map[infer.ModelRef]infer.Statistics, len(refs))
	for i := range refs {
		refs[i] = infer.ModelRef{Name: "m", Version: int64(i + 1)}
		counts[refs[i]] = counted()
	}
	at, _ := serve(t, "tcp", "127.0.0.1:0", (&scheduler{counts: counts}).register)
	r.give("holder", at)
	client := control.NewPoolClient(r.finder, control.Options{})
	t.Cleanup(client.Close)
	list, err := client.Statistics(t.Context(), refs)
	if err != nil || len(list) != len(refs) {
		t.Fatalf("%d counts: %v", len(list), err)
	}
	if diff := cmp.Diff(counted(), list[len(list)-1]); diff != "" {
		t.Error(diff)
	}
}
