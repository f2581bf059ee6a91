package worker

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

// tritonSeries are the series that Triton exports and that a worker knows: how long each version took to load, and
// the pool of pinned memory.
//
// It is an unchecked collector, since the labels of versions differ by their tags.
type tritonSeries struct {
	pinned *backend.PinnedMemory

	mu    sync.Mutex
	loads map[version]prometheus.Metric // guarded by mu
}

func newTritonSeries(pinned *backend.PinnedMemory) *tritonSeries {
	return &tritonSeries{pinned: pinned, loads: make(map[version]prometheus.Metric)}
}

func gauge(d *prometheus.Desc, value float64) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value)
}

// loaded records the last load of a version, which may have been a reload.
func (s *tritonSeries) loaded(v backend.Version, took time.Duration) {
	d := prometheus.NewDesc("nv_model_load_duration_secs",
		"Time to load the model version with all its instances, warmed up, in seconds.", nil, obs.ModelLabels(v.Ref, v.Config.MetricTags))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loads[version{v.Ref.ID(), v.Ref.Version}] = gauge(d, took.Seconds())
}

func (s *tritonSeries) unloaded(v version) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.loads, v)
}

// Describe sends nothing.
func (s *tritonSeries) Describe(chan<- *prometheus.Desc) {}

// Collect sends all series.
func (s *tritonSeries) Collect(out chan<- prometheus.Metric) {
	s.mu.Lock()
	loads := slices.Collect(maps.Values(s.loads))
	s.mu.Unlock()
	total, used := s.pinned.Bytes()
	out <- gauge(prometheus.NewDesc("nv_pinned_memory_pool_total_bytes", "Pinned memory pool total memory size, in bytes", nil, nil), float64(total))
	out <- gauge(prometheus.NewDesc("nv_pinned_memory_pool_used_bytes", "Pinned memory pool used memory size, in bytes", nil, nil), float64(used))
	for _, m := range loads {
		out <- m
	}
}
