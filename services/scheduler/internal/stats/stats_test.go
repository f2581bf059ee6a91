package stats_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/scheduler/internal/stats"
)

func TestFamiliesFollowTheBatches(t *testing.T) {
	set := stats.NewSet(stats.DefaultLatencies())
	ref := infer.ModelRef{Name: "digits", Version: 3, Generation: 1}
	set.Add(ref, &modelconfig.Config{MaxBatchSize: 8, MetricTags: map[string]string{"team": "vision", "_reserved": "x"}})
	c := set.Of(ref)
	start := mono.Time(time.Second)
	ms := func(n int) mono.Time { return start.Add(time.Duration(n) * time.Millisecond) }
	timing := infer.Timing{Start: ms(2), InputDone: ms(3), InferDone: ms(7), Done: ms(9)}
	// Two requests in one execution, of 1 and 3 rows; the second waited less.
	c.Submitted()
	c.Submitted()
	c.Submitted()
	c.Started(2)
	c.Runs(2)
	c.Completed(&infer.InstanceFree{Executions: 1, BatchSize: 4, Timing: timing}, []stats.Served{
		{Outcome: infer.Succeeded, Rows: 1, Enqueued: ms(0), Dispatched: ms(1)},
		{Outcome: infer.Succeeded, Rows: 3, Enqueued: ms(1), Dispatched: ms(1)},
		{Outcome: infer.Failed, Rows: 1, Enqueued: ms(1)},
		{Outcome: infer.Canceled, Rows: 1, Enqueued: ms(1)},
		{Outcome: infer.Rejected, Rows: 1, Enqueued: ms(1)},
	})
	c.Refused(errs.MaxQueueSize, 0)
	c.Refused(errs.Canceled, time.Millisecond)
	c.Refused(errs.NoWorker, 0)
	c.Lost(0)
	want := `
# TYPE nv_inference_request_success counter
nv_inference_request_success{_team="vision",model="digits",version="3"} 2
# TYPE nv_inference_request_failure counter
nv_inference_request_failure{_team="vision",model="digits",reason="BACKEND",version="3"} 1
nv_inference_request_failure{_team="vision",model="digits",reason="CANCELED",version="3"} 2
nv_inference_request_failure{_team="vision",model="digits",reason="OTHER",version="3"} 2
nv_inference_request_failure{_team="vision",model="digits",reason="REJECTED",version="3"} 2
# TYPE nv_inference_count counter
nv_inference_count{_team="vision",model="digits",version="3"} 4
# TYPE nv_inference_exec_count counter
nv_inference_exec_count{_team="vision",model="digits",version="3"} 1
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{_team="vision",model="digits",version="3"} 1
# TYPE nv_inference_request_duration_us counter
nv_inference_request_duration_us{_team="vision",model="digits",version="3"} 17000
# TYPE nv_inference_queue_duration_us counter
nv_inference_queue_duration_us{_team="vision",model="digits",version="3"} 3000
# TYPE nv_inference_compute_input_duration_us counter
nv_inference_compute_input_duration_us{_team="vision",model="digits",version="3"} 2000
# TYPE nv_inference_compute_infer_duration_us counter
nv_inference_compute_infer_duration_us{_team="vision",model="digits",version="3"} 8000
# TYPE nv_inference_compute_output_duration_us counter
nv_inference_compute_output_duration_us{_team="vision",model="digits",version="3"} 4000
# TYPE nereid_scheduler_refusals_total counter
nereid_scheduler_refusals_total{model="digits",reason="cancelled",version="3"} 1
nereid_scheduler_refusals_total{model="digits",reason="max_queue_size",version="3"} 1
nereid_scheduler_refusals_total{model="digits",reason="no_worker",version="3"} 1
# TYPE nereid_scheduler_in_flight_requests gauge
nereid_scheduler_in_flight_requests{model="digits",version="3"} 3
# TYPE nereid_scheduler_batched_rows_total counter
nereid_scheduler_batched_rows_total{model="digits",version="3"} 4
# TYPE nereid_scheduler_batch_slots_total counter
nereid_scheduler_batch_slots_total{model="digits",version="3"} 8
# TYPE nereid_scheduler_stage_seconds histogram
nereid_scheduler_stage_seconds_count{model="digits",stage="queue",version="3"} 2
nereid_scheduler_stage_seconds_count{model="digits",stage="dispatch",version="3"} 2
nereid_scheduler_stage_seconds_count{model="digits",stage="input",version="3"} 1
nereid_scheduler_stage_seconds_count{model="digits",stage="infer",version="3"} 1
nereid_scheduler_stage_seconds_count{model="digits",stage="output",version="3"} 1
nereid_scheduler_stage_seconds_sum{model="digits",stage="queue",version="3"} 0.001
nereid_scheduler_stage_seconds_sum{model="digits",stage="dispatch",version="3"} 0.002
nereid_scheduler_stage_seconds_sum{model="digits",stage="input",version="3"} 0.001
nereid_scheduler_stage_seconds_sum{model="digits",stage="infer",version="3"} 0.004
nereid_scheduler_stage_seconds_sum{model="digits",stage="output",version="3"} 0.002
`
	if diff := cmp.Diff(lines(want), lines(exposition(t, set))); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
}

// exposition writes the counters and gauges of set as a scrape shows them.
func exposition(t *testing.T, set *stats.Set) string {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(set)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(&text, family); err != nil {
			t.Fatal(err)
		}
	}
	return text.String()
}

// lines sorts the lines of an exposition, less help and buckets.
func lines(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "# HELP") &&
			!strings.Contains(line, "_batch_rows") && !strings.Contains(line, "_bucket{") {
			out = append(out, line)
		}
	}
	slices.Sort(out)
	return out
}

func TestSeriesLiveAsLongAsSomeContentIsLoaded(t *testing.T) {
	set := stats.NewSet(stats.DefaultLatencies())
	first := infer.ModelRef{Name: "m", Version: 1, Generation: 1}
	second := infer.ModelRef{Name: "m", Version: 1, Generation: 2}
	if set.Of(first) != nil {
		t.Fatal("counters of a model that is not loaded")
	}
	set.Add(first, new(modelconfig.Config))
	set.Of(first).Completed(&infer.InstanceFree{Executions: 1, BatchSize: 1}, nil)
	set.Add(second, new(modelconfig.Config))
	set.Remove(first)
	if set.Of(second) == nil || set.Of(second) != set.Of(first) {
		t.Fatal("a reload did not go on counting")
	}
	// A series exists from the load on, at 0.
	if n := testutil.CollectAndCount(set, "nv_inference_request_failure"); n != 4 {
		t.Errorf("%d failure series, want 4", n)
	}
	set.Remove(second)
	set.Remove(second)
	if n := testutil.CollectAndCount(set); n != 0 {
		t.Errorf("%d series after the unload, want 0", n)
	}
}

// Requests that were in flight when their version was unloaded end when it may
// have been loaded again.
func TestRequestsInFlightOutliveAnUnload(t *testing.T) {
	set := stats.NewSet(stats.DefaultLatencies())
	gauges := func(when string, pending, inFlight int) {
		t.Helper()
		text := exposition(t, set)
		for _, want := range []string{
			fmt.Sprintf("nereid_scheduler_in_flight_requests{model=\"m\",version=\"1\"} %d\n", inFlight),
			fmt.Sprintf("nv_inference_pending_request_count{model=\"m\",version=\"1\"} %d\n", pending),
		} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: not there: %s", when, want)
			}
		}
	}
	old, reloaded := infer.ModelRef{Name: "m", Version: 1, Generation: 1}, infer.ModelRef{Name: "m", Version: 1, Generation: 2}
	config := &modelconfig.Config{MaxBatchSize: 8}
	set.Add(old, config)
	for range 4 {
		set.Of(old).Submitted()
	}
	set.Of(old).Started(2)
	set.Of(old).Runs(2)
	gauges("before", 2, 4)
	set.Remove(old)
	set.Of(old).Refused(errs.ModelNotReady, 0) // one that waited
	set.Of(old).Started(1)
	set.Of(old).Runs(-1)
	if n := testutil.CollectAndCount(set); n != 0 {
		t.Errorf("%d series of an unloaded version", n)
	}
	set.Add(reloaded, config)
	gauges("loaded again", 1, 2)
	set.Of(reloaded).Submitted()
	set.Of(old).Started(1)
	set.Of(old).Runs(-1)
	gauges("after the old ones", 1, 1)
	set.Of(reloaded).Started(1)
	gauges("at the end", 0, 0)
	set.Remove(reloaded)
	if set.Of(reloaded) != nil {
		t.Error("an unloaded version without requests is known")
	}
}

func TestOwnFamiliesAreWellNamed(t *testing.T) {
	set := stats.NewSet(stats.DefaultLatencies())
	ref := infer.ModelRef{Name: "m", Version: 1, Generation: 1}
	set.Add(ref, new(modelconfig.Config))
	set.Of(ref).Refused(errs.Shed, 0)
	problems, err := testutil.CollectAndLint(set, "nereid_scheduler_refusals_total", "nereid_scheduler_batch_rows",
		"nereid_scheduler_stage_seconds", "nereid_scheduler_in_flight_requests", "nereid_scheduler_batched_rows_total", "nereid_scheduler_batch_slots_total")
	if err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
}
