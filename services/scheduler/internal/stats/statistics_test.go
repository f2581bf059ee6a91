package stats_test

import (
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/scheduler/internal/stats"
)

// counters are those of a model that was loaded just now.
func counters() *stats.Counters {
	set := stats.NewSet(stats.DefaultLatencies())
	ref := infer.ModelRef{Name: "m", Version: 1, Generation: 1}
	set.Add(ref, new(modelconfig.Config))
	return set.Of(ref)
}

func TestResponsesOfDecoupledModelsCountByTheirIndex(t *testing.T) {
	set := stats.NewSet(stats.DefaultLatencies())
	ref := infer.ModelRef{Name: "m", Version: 1, Generation: 1}
	set.Add(ref, &modelconfig.Config{Decoupled: true})
	c := set.Of(ref)
	of := func(o infer.Outcome, empty bool, times ...time.Duration) stats.Served {
		return stats.Served{Outcome: o, Rows: 1, Responses: infer.UnitResponses{Times: times, Empty: empty}}
	}
	timing := infer.Timing{Start: 1000, InputDone: 1001, InferDone: 1011, Done: 1111}
	c.Completed(&infer.InstanceFree{Executions: 1, BatchSize: 6, Timing: timing}, []stats.Served{
		of(infer.Succeeded, true, 1, 2, 3), of(infer.Succeeded, false, 10, 20), of(infer.Failed, false, 100, 200), of(infer.Canceled, false, 1000, 2000),
		of(infer.Succeeded, false), of(infer.Rejected, false),
	})
	want := []infer.ResponseStatistics{
		{Infer: tally(5, 1121), Output: tally(5, 0), Success: tally(5, 1121)},
		{Infer: tally(2, 22), Output: tally(2, 0), Success: tally(2, 22), Fail: tally(1, 200), Cancel: tally(1, 2000)},
		{Empty: tally(1, 3)},
	}
	if diff := cmp.Diff(want, c.Statistics(wall).Responses); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	c.Completed(&infer.InstanceFree{Executions: 1, Timing: timing}, []stats.Served{of(infer.Failed, false, make([]time.Duration, infer.MaxResponseTimes)...)})
	if got := c.Statistics(wall).Responses; len(got) != infer.MaxResponseTimes || got[len(got)-1].Success.Count != 1 {
		t.Errorf("%d indices of a request that had more, the last is %+v", len(got), got[len(got)-1])
	}
}

// wall makes a wall time of the monotonic one, from the epoch on.
func wall(t mono.Time) time.Time { return time.Unix(0, int64(t)) }

func tally(count uint64, d time.Duration) infer.Tally { return infer.Tally{Count: count, Time: d} }

func TestStatisticsFollowTheBatches(t *testing.T) {
	c := counters()
	if diff := cmp.Diff(infer.Statistics{}, c.Statistics(wall)); diff != "" {
		t.Errorf("at the load (-want +got):\n%s", diff)
	}
	ran := infer.Timing{Start: 1000, InputDone: 1001, InferDone: 1011, Done: 1111}
	again := infer.Timing{Start: 2000, InputDone: 2002, InferDone: 2022, Done: 2222}
	ok := func(rows int64, enqueued mono.Time) stats.Served {
		return stats.Served{Outcome: infer.Succeeded, Rows: rows, Enqueued: enqueued}
	}
	c.Completed(&infer.InstanceFree{Executions: 1, BatchSize: 8, Timing: ran}, []stats.Served{ok(3, 900), ok(5, 990)})
	c.Completed(&infer.InstanceFree{Executions: 1, BatchSize: 1, Timing: again}, []stats.Served{ok(1, 1999)})
	c.Completed(&infer.InstanceFree{Executions: 1, BatchSize: 8, Timing: again}, []stats.Served{{Outcome: infer.Failed, Rows: 8, Enqueued: 1222}})
	// Past its latest start: it has not run, and its time says nothing.
	c.Completed(&infer.InstanceFree{Timing: infer.Timing{Done: 9000}}, []stats.Served{{Outcome: infer.Rejected, Rows: 8, Enqueued: 8000}})
	c.Refused(errs.MaxQueueSize, 7)
	c.Lost(3)
	want := infer.Statistics{
		LastInference: time.Unix(0, 2222), Inferences: 9, Executions: 3,
		Success: tally(3, 211+121+223), Fail: tally(4, 1000+1000+7+3),
		Queue: tally(3, 100+10+1), Input: tally(3, 1+1+2), Infer: tally(3, 10+10+20), Output: tally(3, 100+100+200),
		Batches: []infer.BatchStatistics{
			{Size: 1, Input: tally(1, 2), Infer: tally(1, 20), Output: tally(1, 200)},
			{Size: 8, Input: tally(2, 1+2), Infer: tally(2, 10+20), Output: tally(2, 100+200)},
		},
	}
	if diff := cmp.Diff(want, c.Statistics(wall)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Tools take differences of two readings and divide: counts that do not go
// together make them give up.
func TestStatisticsFitTogetherWhileBatchesEnd(t *testing.T) {
	const batches, size = 2000, 4
	c := counters()
	var working sync.WaitGroup
	working.Go(func() {
		served := make([]stats.Served, size)
		for i := range served {
			served[i] = stats.Served{Outcome: infer.Succeeded, Rows: 1}
		}
		for range batches {
			c.Completed(&infer.InstanceFree{Executions: 1, BatchSize: size, Timing: infer.Timing{Done: 1}}, served)
		}
	})
	for done := false; !done; {
		s := c.Statistics(wall)
		done = s.Executions == batches
		counts := []uint64{s.Success.Count, s.Queue.Count, s.Input.Count, s.Infer.Count, s.Output.Count, s.Inferences}
		for _, n := range counts {
			if n != size*s.Executions {
				t.Fatalf("%d executions of %d, and counts %v", s.Executions, size, counts)
			}
		}
	}
	working.Wait()
}

func BenchmarkCompleted(b *testing.B) {
	c := counters()
	served := []stats.Served{{Outcome: infer.Succeeded, Rows: 1, Enqueued: 1}}
	done := &infer.InstanceFree{Executions: 1, BatchSize: 1, Timing: infer.Timing{Start: 10, InputDone: 20, InferDone: 30, Done: 40}}
	b.ReportAllocs()
	for b.Loop() {
		c.Completed(done, served)
	}
}

func TestHitsAreSuccessesWithoutExecution(t *testing.T) {
	c := counters()
	c.CacheUsed(false, 30)
	c.Completed(&infer.InstanceFree{Executions: 1, BatchSize: 1, Timing: infer.Timing{Start: 10, InputDone: 11, InferDone: 13, Done: 17}},
		[]stats.Served{{Outcome: infer.Succeeded, Rows: 1, Enqueued: 5}})
	c.CacheUsed(true, 2)
	c.CacheUsed(true, 3)
	s := c.Statistics(wall)
	got := []infer.Tally{s.Success, s.Queue, s.Input, s.CacheHit, s.CacheMiss}
	want := []infer.Tally{tally(3, 12+5), tally(3, 5), tally(1, 1), tally(2, 5), tally(1, 30)}
	if diff := cmp.Diff(want, got); diff != "" || s.Inferences != 1 || s.Executions != 1 {
		t.Errorf("%d inferences, %d executions, success, queue, input, hit, miss (-want +got):\n%s", s.Inferences, s.Executions, diff)
	}
}

// An ensemble has the phases of its steps for each request that has succeeded, and for its
// batch size.
func TestEnsemblesCountTheirStepsPhases(t *testing.T) {
	c := counters()
	for _, e := range []infer.EnsembleEnd{
		{BatchSize: 2, Time: 100, Input: 1, Infer: 10, Output: 3},
		{BatchSize: 1, Time: 200, Input: 2, Infer: 20, Output: 4},
		{BatchSize: 2, Time: 300, Input: 4, Infer: 40, Output: 5},
		{BatchSize: 2, Time: 400, Input: 8, Infer: 80, Output: 6, Failed: true},
	} {
		c.EnsembleEnded(&e, 1000)
	}
	want := infer.Statistics{
		LastInference: wall(1000), Inferences: 5, Executions: 3, Success: tally(3, 600), Fail: tally(1, 400),
		Queue: tally(3, 0), Input: tally(3, 7), Infer: tally(3, 70), Output: tally(3, 12),
		Batches: []infer.BatchStatistics{
			{Size: 1, Input: tally(1, 2), Infer: tally(1, 20), Output: tally(1, 4)}, {Size: 2, Input: tally(2, 5), Infer: tally(2, 50), Output: tally(2, 8)},
		},
	}
	if diff := cmp.Diff(want, c.Statistics(wall)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
