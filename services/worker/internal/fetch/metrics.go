package fetch

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nereid-serving/nereid/libs/errs"
)

type metrics struct {
	received, evictions prometheus.Counter
	bytes               prometheus.Gauge
	failures, lookups   *prometheus.CounterVec
	seconds             *prometheus.HistogramVec
}

// newMetrics makes the metrics and registers them, unless there is nowhere to.
func newMetrics(registry prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		received:  prometheus.NewCounter(prometheus.CounterOpts{Name: "nereid_worker_download_bytes_total", Help: "Bytes of models that came from stores."}),
		evictions: prometheus.NewCounter(prometheus.CounterOpts{Name: "nereid_worker_cache_evictions_total", Help: "Contents removed from the cache of models to make room."}),
		bytes:     prometheus.NewGauge(prometheus.GaugeOpts{Name: "nereid_worker_cache_bytes", Help: "Bytes in the cache of models when room was last made."}),
		failures:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "nereid_worker_download_failures_total", Help: "Attempts to fetch a model that failed, by reason; most are tried again."}, []string{"reason"}),
		lookups:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "nereid_worker_cache_lookups_total", Help: "Contents looked for in the cache of models."}, []string{"result"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "nereid_worker_download_seconds", Help: "Time to fetch the files of a model version, with all attempts.",
			Buckets: prometheus.ExponentialBuckets(0.05, 3, 9), NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160,
		}, []string{"outcome"}),
	}
	m.begin()
	if registry == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.received, m.evictions, m.bytes, m.failures, m.lookups, m.seconds} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// begin shows all series from the start, so that a first failure is a change.
func (m *metrics) begin() {
	for _, reason := range []errs.Reason{
		errs.CacheFull, errs.FilesChanged, errs.LoadFailed,
		errs.StoreDenied, errs.StoreNotFound, errs.StoreThrottled, errs.StoreTruncated, errs.StoreUnreachable,
	} {
		m.failures.WithLabelValues(string(reason))
	}
	for _, result := range []string{"hit", "miss"} {
		m.lookups.WithLabelValues(result)
	}
	for _, outcome := range []string{"success", "failure"} {
		m.seconds.WithLabelValues(outcome)
	}
}

func (m *metrics) finished(err error, took time.Duration) {
	outcome := "success"
	if err != nil {
		outcome = "failure"
		if !passing(err) {
			m.failures.WithLabelValues(string(errs.Of(err))).Inc()
		}
	}
	m.seconds.WithLabelValues(outcome).Observe(took.Seconds())
}
