package stats

import (
	"cmp"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
)

const firstResponse = "nv_inference_first_response_histogram_ms"

// A summary covers the last minute, which advances in twelve-second steps.
const (
	window      = time.Minute
	windowSteps = 5
)

// distributions are one model version's histograms and summaries; nil where they are disabled.
type distributions struct {
	first                       prometheus.Histogram
	queue, input, infer, output prometheus.Summary
	// request is nil if responses are cached, since no quantile over both hits and other requests is meaningful; hit
	// and miss are nil otherwise.
	request, hit, miss prometheus.Summary
}

// newDistributions returns the distributions that l enables for a model, or nil if there are none.
func newDistributions(l Latencies, labels prometheus.Labels, c *modelconfig.Config) *distributions {
	if !l.Histograms && !l.Summaries {
		return nil
	}
	d := new(distributions)
	if l.Histograms && c.Decoupled { // for other models the request's duration is the same
		d.first = prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: firstResponse, ConstLabels: labels, Buckets: firstBuckets(c),
			Help: "Time from the arrival of a decoupled model's requests to their first response, in milliseconds.",
		})
	}
	if l.Summaries {
		d.summaries(l.objectives(), labels, c.Reuses())
	}
	return d
}

// firstBuckets returns the buckets of the model's configuration, or Triton's.
func firstBuckets(c *modelconfig.Config) []float64 {
	if own := c.HistogramBuckets[firstResponse]; len(own) > 0 {
		return own
	}
	return []float64{100, 500, 2000, 5000}
}

func (d *distributions) summaries(objectives map[float64]float64, labels prometheus.Labels, cached bool) {
	summary := func(name, help string) prometheus.Summary {
		return prometheus.NewSummary(prometheus.SummaryOpts{
			Name: name, ConstLabels: labels,
			Help:       help,
			Objectives: objectives, MaxAge: window, AgeBuckets: windowSteps,
		})
	}
	if cached {
		d.hit = summary("nv_cache_hit_summary_per_model", "Summary of cache hit counts/durations per model, in microseconds.")
		d.miss = summary("nv_cache_miss_summary_per_model", "Summary of cache miss counts/durations per model, in microseconds.")
	} else {
		d.request = summary("nv_inference_request_summary_us", "Summary of inference request duration in microseconds (includes cached requests)")
	}
	d.queue = summary("nv_inference_queue_summary_us", "Summary of inference queuing duration in microseconds (includes cached requests)")
	d.input = summary("nv_inference_compute_input_summary_us", "Summary of compute input duration in microseconds (does not include cached requests)")
	d.infer = summary("nv_inference_compute_infer_summary_us", "Summary of compute inference duration in microseconds (does not include cached requests)")
	d.output = summary("nv_inference_compute_output_summary_us", "Summary of inference compute output duration in microseconds (does not include cached requests)")
}

// observe records the requests of a batch that have had a response.
func (d *distributions) observe(done *infer.InstanceFree, requests []Served) {
	if d == nil {
		return
	}
	for i := range requests {
		r, t := &requests[i], &done.Timing
		succeeded := r.Outcome == infer.Succeeded
		if d.first != nil && !r.Again && (succeeded || r.FirstResponse != 0) {
			first := cmp.Or(r.FirstResponse, t.Done)
			d.first.Observe(float64(max(first.Sub(r.Enqueued), 0)) / float64(time.Millisecond))
		}
		if d.queue != nil && succeeded {
			d.succeeded(r, t)
		}
	}
}

func (d *distributions) succeeded(r *Served, t *infer.Timing) {
	if d.request != nil {
		d.request.Observe(micros(t.Done.Sub(r.Enqueued)))
	}
	d.queue.Observe(micros(t.Start.Sub(r.queued())))
	d.input.Observe(micros(t.Input()))
	d.infer.Observe(micros(t.Infer()))
	d.output.Observe(micros(t.Output()))
}

// cacheUsed records the use of the response cache for a request.
func (d *distributions) cacheUsed(hit bool, took time.Duration) {
	switch {
	case d == nil || d.hit == nil:
	case hit:
		d.hit.Observe(micros(took))
		d.queue.Observe(0)
	default:
		d.miss.Observe(micros(took))
	}
}

// micros are whole microseconds, as the counters sum them up. A negative
// time, from clocks of two processes, is none.
func micros(d time.Duration) float64 { return float64(max(d, 0).Microseconds()) }

func (d *distributions) collect(out chan<- prometheus.Metric) {
	if d == nil {
		return
	}
	if d.first != nil {
		d.first.Collect(out)
	}
	for _, s := range []prometheus.Summary{d.request, d.queue, d.input, d.infer, d.output, d.hit, d.miss} {
		if s != nil {
			s.Collect(out)
		}
	}
}
