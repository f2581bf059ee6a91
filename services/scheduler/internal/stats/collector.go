package stats

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Describe describes nothing: a model's tags become labels, so that the
// series of one family may differ in theirs, which only an unchecked
// collector may do.
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

// families are the descriptions of Triton's families with the labels of one
// model version.
type families struct {
	success, failure, count, executions, pending *prometheus.Desc
	request, queue, input, infer, output         *prometheus.Desc
}

func newFamilies(labels prometheus.Labels) families {
	describe := func(name, help string, variable ...string) *prometheus.Desc {
		return prometheus.NewDesc("nv_inference_"+name, help, variable, labels)
	}
	return families{
		success:    describe("request_success", "Inference requests that were answered by the model."),
		failure:    describe("request_failure", "Inference requests that were not answered by the model, by reason.", "reason"),
		count:      describe("count", "Rows inferred; a request with a batch of n counts n. Cache hits do not count."),
		executions: describe("exec_count", "Executions of the model; count divided by this is the mean batch size."),
		pending:    describe("pending_request_count", "Requests that wait for their execution to start."),
		request:    describe("request_duration_us", "Sum over successful requests of the time from arrival to answer, in microseconds."),
		queue:      describe("queue_duration_us", "Sum over successful requests of the time in the queue, in microseconds."),
		input:      describe("compute_input_duration_us", "Sum over successful requests of the time to gather their batch's inputs, in microseconds."),
		infer:      describe("compute_infer_duration_us", "Sum over successful requests of the time of their batch in the model, in microseconds."),
		output:     describe("compute_output_duration_us", "Sum over successful requests of the time to hand over their batch's outputs, in microseconds."),
	}
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
	if !times {
		return
	}
	counter(f.request, micros(t.request.Time))
	counter(f.queue, micros(t.queue.Time))
	counter(f.input, micros(t.input.Time))
	counter(f.infer, micros(t.infer.Time))
	counter(f.output, micros(t.output.Time))
}
