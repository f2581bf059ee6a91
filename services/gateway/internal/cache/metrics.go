package cache

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// spent is the time that a local cache has used.
type spent struct{ lookups, insertions total }

type total struct{ nanoseconds atomic.Int64 }

func (t *total) add(d time.Duration) { t.nanoseconds.Add(int64(d)) }

func (t *total) micros() float64 { return float64(t.nanoseconds.Load() / int64(time.Microsecond)) }

// Collectors returns Triton's metrics of a local cache, with their names and types.
func (s *Local) Collectors() (list []prometheus.Collector) {
	for _, f := range []struct {
		name, help string
		value      func() float64
	}{
		{"util", "Cache utilization [0.0 - 1.0]", func() float64 { return float64(s.entries.WeightedSize()) / float64(s.size) }},
		{"num_entries", "Number of responses stored in response cache", func() float64 { return float64(s.entries.EstimatedSize()) }},
		{"num_hits", "Number of cache hits in response cache", func() float64 { return float64(s.counter.Snapshot().Hits) }},
		{"num_misses", "Number of cache misses in response cache", func() float64 { return float64(s.counter.Snapshot().Misses) }},
		{"num_lookups", "Number of cache lookups in response cache", func() float64 { return float64(s.counter.Snapshot().Requests()) }},
		{"num_evictions", "Number of cache evictions in response cache", func() float64 { return float64(s.counter.Snapshot().Evictions) }},
		{"lookup_duration", "Total cache lookup duration (hit and miss), in microseconds", s.spent.lookups.micros},
		{"insertion_duration", "Total cache insertion duration, in microseconds", s.spent.insertions.micros},
	} {
		list = append(list, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "nv_cache_" + f.name, Help: f.help}, f.value))
	}
	return list
}
