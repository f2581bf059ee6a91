package stats

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Describe sends nothing: a model's tags become labels, so the series of one family may have different labels, which
// only an unchecked collector may send.
func (s *Set) Describe(chan<- *prometheus.Desc) {}

// Collect sends all series.
func (s *Set) Collect(out chan<- prometheus.Metric) {
	for k, e := range s.snapshot() {
		e.families.collect(e.counters, s.latencies.Counters, out)
		e.counters.times.collect(out)
		s.own.collect(k, e.counters, out)
	}
	s.refusals.Collect(out)
	s.batchRows.Collect(out)
}

// families are the descriptors of Triton's families, with Triton's texts and the labels of one model version.
// Durations are those of successful requests.
type families struct {
	success, failure, count, executions, pending *prometheus.Desc
	request, queue, input, infer, output         *prometheus.Desc
	cache                                        *cacheFamilies // nil if the model's responses are not cached
}

// cacheFamilies are the families of models whose responses may be cached.
type cacheFamilies struct{ hits, misses, hitTime, missTime *prometheus.Desc }

func newCacheFamilies(labels prometheus.Labels) *cacheFamilies {
	describe := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("nv_cache_"+name+"_per_model", help, nil, labels)
	}
	return &cacheFamilies{
		hits:     describe("num_hits", "Number of cache hits per model"),
		misses:   describe("num_misses", "Number of cache misses per model"),
		hitTime:  describe("hit_duration", "Total cache hit duration per model, in microseconds"),
		missTime: describe("miss_duration", "Total cache miss (insert+lookup) duration per model, in microseconds"),
	}
}

func newFamilies(labels prometheus.Labels, cached bool) families {
	describe := func(name, help string, variable ...string) *prometheus.Desc {
		return prometheus.NewDesc("nv_inference_"+name, help, variable, labels)
	}
	f := families{
		success:    describe("request_success", "Number of successful inference requests, all batch sizes"),
		failure:    describe("request_failure", "Number of failed inference requests, all batch sizes", "reason"),
		count:      describe("count", "Number of inferences performed (does not include cached requests)"),
		executions: describe("exec_count", "Number of model executions performed (does not include cached requests)"),
		pending:    describe("pending_request_count", "Instantaneous number of pending requests awaiting execution per-model."),
		request:    describe("request_duration_us", "Cumulative inference request duration in microseconds (includes cached requests)"),
		queue:      describe("queue_duration_us", "Cumulative inference queuing duration in microseconds (includes cached requests)"),
		input:      describe("compute_input_duration_us", "Cumulative compute input duration in microseconds (does not include cached requests)"),
		infer:      describe("compute_infer_duration_us", "Cumulative compute inference duration in microseconds (does not include cached requests)"),
		output:     describe("compute_output_duration_us", "Cumulative inference compute output duration in microseconds (does not include cached requests)"),
	}
	if cached {
		f.cache = newCacheFamilies(labels)
	}
	return f
}

func (f *families) collect(c *Counters, times bool, out chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, value, labels...)
	}
	t := c.snapshot()
	counter(f.success, float64(t.request.Count))
	for r := range failures {
		counter(f.failure, float64(t.failed[r]), r.String())
	}
	counter(f.count, float64(t.inferences))
	counter(f.executions, float64(t.executions))
	out <- prometheus.MustNewConstMetric(f.pending, prometheus.GaugeValue, float64(c.pending.Load()))
	if f.cache != nil {
		counter(f.cache.hits, float64(t.hit.Count))
		counter(f.cache.misses, float64(t.miss.Count))
	}
	if !times {
		return
	}
	if f.cache != nil {
		counter(f.cache.hitTime, micros(t.hit.Time))
		counter(f.cache.missTime, micros(t.miss.Time))
	}
	counter(f.request, micros(t.request.Time))
	counter(f.queue, micros(t.queue.Time))
	counter(f.input, micros(t.input.Time))
	counter(f.infer, micros(t.infer.Time))
	counter(f.output, micros(t.output.Time))
}
