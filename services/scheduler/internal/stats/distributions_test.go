package stats_test

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/scheduler/internal/stats"
)

// all shows times in every form.
func all() stats.Latencies {
	l := stats.DefaultLatencies()
	l.Histograms, l.Summaries = true, true
	return l
}

// shown gathers a set that shows times as l says, of a model with a
// configuration that has served some requests.
func shown(t *testing.T, l stats.Latencies, c *modelconfig.Config, serve func(*stats.Counters)) map[string]*dto.MetricFamily {
	t.Helper()
	set := stats.NewSet(l)
	ref := infer.ModelRef{Name: "m", Version: 1, Generation: 1}
	set.Add(ref, c)
	serve(set.Of(ref))
	registry := prometheus.NewRegistry()
	registry.MustRegister(set)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	byName := make(map[string]*dto.MetricFamily)
	for _, f := range families {
		byName[f.GetName()] = f
	}
	return byName
}

// hundred serves 100 requests, of which the nth took n milliseconds, a tenth
// of it in the queue, and as many that failed.
func hundred(c *stats.Counters) {
	for n := range 100 {
		total := time.Duration(n+1) * time.Millisecond
		start := mono.Time(time.Second)
		timing := infer.Timing{
			Start: start, InputDone: start.Add(total / 10), InferDone: start.Add(total / 2), Done: start.Add(total * 9 / 10),
		}
		c.Completed(&infer.InstanceFree{Executions: 1, BatchSize: 2, Timing: timing}, []stats.Served{
			{Outcome: infer.Succeeded, Rows: 1, Enqueued: start.Add(-total / 10)},
			{Outcome: infer.Failed, Rows: 1},
		})
	}
}

func TestSummariesFollowTheSuccessfulRequests(t *testing.T) {
	families := shown(t, all(), new(modelconfig.Config), hundred)
	// Of a request of 100 ms, in microseconds.
	for name, phase := range map[string]float64{
		"request": 100_000, "queue": 10_000, "compute_input": 10_000, "compute_infer": 40_000, "compute_output": 40_000,
	} {
		f := families["nv_inference_"+name+"_summary_us"]
		if f.GetType() != dto.MetricType_SUMMARY {
			t.Fatalf("%s: %v", name, f)
		}
		s := f.GetMetric()[0].GetSummary()
		if s.GetSampleCount() != 100 || s.GetSampleSum() != 50.5*phase {
			t.Errorf("%s: %d requests of %v us, want 100 of %v", name, s.GetSampleCount(), s.GetSampleSum(), 50.5*phase)
		}
		var ranks []float64
		for _, q := range s.GetQuantile() {
			ranks = append(ranks, q.GetQuantile())
			// One rank beside the error that was asked for: ranks are whole.
			if off := math.Abs(q.GetValue()/phase - q.GetQuantile()); off > 0.06 {
				t.Errorf("%s: quantile %v is %v us", name, q.GetQuantile(), q.GetValue())
			}
		}
		if diff := cmp.Diff([]float64{0.5, 0.9, 0.95, 0.99, 0.999}, ranks); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// counts are those of a histogram by upper bound.
func counts(f *dto.MetricFamily) map[float64]uint64 {
	found := make(map[float64]uint64)
	for _, b := range f.GetMetric()[0].GetHistogram().GetBucket() {
		found[b.GetUpperBound()] = b.GetCumulativeCount()
	}
	return found
}

func TestFirstResponsesAreInTheModelsBuckets(t *testing.T) {
	const family = "nv_inference_first_response_histogram_ms"
	own := &modelconfig.Config{Decoupled: true, HistogramBuckets: map[string][]float64{family: {10, 20.5}, "another": {1}}}
	for name, tt := range map[string]struct {
		config *modelconfig.Config
		want   map[float64]uint64
	}{
		"Triton's":     {&modelconfig.Config{Decoupled: true}, map[float64]uint64{100: 100, 500: 100, 2000: 100, 5000: 100}},
		"the model's":  {own, map[float64]uint64{10: 10, 20.5: 20}},
		"of no family": {&modelconfig.Config{Decoupled: true, HistogramBuckets: map[string][]float64{"another": {1}}}, map[float64]uint64{100: 100, 500: 100, 2000: 100, 5000: 100}},
	} {
		f := shown(t, all(), tt.config, hundred)[family]
		if diff := cmp.Diff(tt.want, counts(f)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if h := f.GetMetric()[0].GetHistogram(); h.GetSampleCount() != 100 || h.GetSampleSum() != 5050 {
			t.Errorf("%s: %d of %v ms, want 100 of 5050", name, h.GetSampleCount(), h.GetSampleSum())
		}
	}
}

// A model that streams has answered long before its batch ends.
func TestFirstResponsesOfAStreamAreThoseThatWereTimed(t *testing.T) {
	timing := infer.Timing{Start: 1, InputDone: 2, InferDone: 3, Done: mono.Time(time.Second)}
	families := shown(t, all(), &modelconfig.Config{Decoupled: true}, func(c *stats.Counters) {
		c.Completed(&infer.InstanceFree{Executions: 1, BatchSize: 2, Timing: timing}, []stats.Served{
			{Outcome: infer.Succeeded, Rows: 1, Enqueued: 1, FirstResponse: mono.Time(40 * time.Millisecond)},
			{Outcome: infer.Succeeded, Rows: 1, Enqueued: 1},
			{Outcome: infer.Canceled, Rows: 1, Enqueued: 1, FirstResponse: mono.Time(400 * time.Millisecond)},
			{Outcome: infer.Canceled, Rows: 1, Enqueued: 1}, // had none
		})
	})
	want := map[float64]uint64{100: 1, 500: 2, 2000: 3, 5000: 3}
	if diff := cmp.Diff(want, counts(families["nv_inference_first_response_histogram_ms"])); diff != "" {
		t.Error(diff)
	}
}

func TestLatenciesChooseTheFamilies(t *testing.T) {
	phases := []string{"request", "queue", "compute_input", "compute_infer", "compute_output"}
	names := func(suffix string) (list []string) {
		for _, p := range phases {
			list = append(list, "nv_inference_"+p+suffix)
		}
		return list
	}
	counters, summaries, histograms := names("_duration_us"), names("_summary_us"), []string{"nv_inference_first_response_histogram_ms"}
	tests := map[string]struct {
		latencies stats.Latencies
		want      []string
	}{
		"default":    {stats.DefaultLatencies(), counters},
		"none":       {stats.Latencies{}, nil},
		"summaries":  {stats.Latencies{Summaries: true}, summaries},
		"histograms": {stats.Latencies{Histograms: true}, histograms},
		"all":        {all(), slices.Concat(counters, summaries, histograms)},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			for family := range shown(t, tt.latencies, &modelconfig.Config{Decoupled: true}, hundred) {
				if strings.HasSuffix(family, "_us") || strings.HasSuffix(family, "_ms") {
					got = append(got, family)
				}
			}
			slices.Sort(got)
			slices.Sort(tt.want)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A model that gives one response has no histogram of its first, as in Triton.
func TestFirstResponsesAreThoseOfDecoupledModels(t *testing.T) {
	const family = "nv_inference_first_response_histogram_ms"
	if f := shown(t, all(), new(modelconfig.Config), hundred)[family]; f != nil {
		t.Errorf("a model that gives one response shows %v", f)
	}
}

func TestBadQuantilesAreNamed(t *testing.T) {
	if err := all().Validate(); err != nil {
		t.Error(err)
	}
	for _, q := range []stats.Quantile{{-0.1, 0.1}, {1.1, 0.1}, {math.NaN(), 0.1}, {0.5, 0}, {0.5, -1}, {0.5, 1.1}, {0.5, math.NaN()}} {
		err := stats.Latencies{Quantiles: []stats.Quantile{q}}.Validate()
		if errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), "want ") {
			t.Errorf("%v: %v", q, err)
		}
	}
}

func BenchmarkCompletedWithSummaries(b *testing.B) {
	set := stats.NewSet(all())
	ref := infer.ModelRef{Name: "m", Version: 1, Generation: 1}
	set.Add(ref, new(modelconfig.Config))
	c := set.Of(ref)
	served := []stats.Served{{Outcome: infer.Succeeded, Rows: 1, Enqueued: 1}}
	done := &infer.InstanceFree{Executions: 1, BatchSize: 1, Timing: infer.Timing{Start: 10, InputDone: 20, InferDone: 30, Done: 40}}
	b.ReportAllocs()
	for b.Loop() {
		c.Completed(done, served)
	}
}
