package stats

import (
	"maps"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/obs"
)

// Set holds the counters of all model versions that are loaded. It is a
// prometheus.Collector and safe for concurrent use.
type Set struct {
	latencies Latencies
	own       own
	refusals  *prometheus.CounterVec
	batchRows *prometheus.HistogramVec

	mu     sync.RWMutex
	models map[key]*entry // guarded by mu
	// unloaded are versions that went while they had requests in flight; guarded
	// by mu.
	unloaded map[key]*Counters
}

// key is a model version whatever its content: a reload goes on counting.
type key struct {
	model   infer.ModelID
	version int64
}

// labels are those of Nereid's own families, where a model is its whole id.
func (k key) labels() prometheus.Labels {
	return prometheus.Labels{"model": k.model.String(), "version": strconv.FormatInt(k.version, 10)}
}

type entry struct {
	counters *Counters
	families families
	loaded   map[uint64]bool // generations
}

// NewSet makes an empty set that shows times as l says, which is valid.
func NewSet(l Latencies) *Set {
	labels := []string{"model", "version"}
	return &Set{
		latencies: l,
		own:       newOwn(),
		models:    make(map[key]*entry),
		unloaded:  make(map[key]*Counters),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nereid_scheduler_refusals_total",
			Help: "Requests that ended without having run, by reason.",
		}, append(labels, "reason")),
		batchRows: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "nereid_scheduler_batch_rows",
			Help:    "Rows per execution.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 10), NativeHistogramBucketFactor: 1.1,
		}, labels),
	}
}

// ownSeries are one model version's children of Nereid's own families.
type ownSeries struct {
	refusals  *prometheus.CounterVec
	batchRows prometheus.Observer
	ended     atomic.Bool // the series are deleted and do not come back
}

func (o *ownSeries) refused(reason errs.Reason) {
	if !o.ended.Load() {
		o.refusals.WithLabelValues(string(reason)).Inc()
	}
}

// Add makes the counters of a loaded content, or finds those of another
// content of the same version. The labels and buckets of the series are those
// of the first content: they change when no content is loaded any more.
func (s *Set) Add(ref infer.ModelRef, c *modelconfig.Config) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := key{ref.ID(), ref.Version}
	e := s.models[k]
	if e == nil {
		labels := obs.ModelLabels(ref, c.MetricTags)
		e = &entry{counters: s.newCounters(k, c), families: newFamilies(labels, c.Reuses()), loaded: map[uint64]bool{}}
		e.counters.times = newDistributions(s.latencies, labels, c)
		s.models[k] = e
	}
	e.loaded[ref.Generation] = true
}

func (s *Set) newCounters(k key, c *modelconfig.Config) *Counters {
	labels := k.labels()
	f := new(inFlight)
	if before := s.unloaded[k]; before != nil {
		f = before.inFlight
		delete(s.unloaded, k)
	}
	return &Counters{inFlight: f, slots: uint64(max(c.MaxBatchSize, 1)), decoupled: c.Decoupled, batches: make(map[int64]*infer.BatchStatistics), own: ownSeries{
		refusals:  s.refusals.MustCurryWith(labels),
		batchRows: s.batchRows.With(labels),
	}}
}

// Remove ends the series of a version when its last content is unloaded.
func (s *Set) Remove(ref infer.ModelRef) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := key{ref.ID(), ref.Version}
	e := s.models[k]
	if e == nil {
		return
	}
	delete(e.loaded, ref.Generation)
	if len(e.loaded) > 0 {
		return
	}
	delete(s.models, k)
	maps.DeleteFunc(s.unloaded, func(_ key, c *Counters) bool { return !c.any() })
	if e.counters.any() {
		s.unloaded[k] = e.counters
	}
	e.counters.own.ended.Store(true)
	labels := k.labels()
	s.refusals.DeletePartialMatch(labels)
	s.batchRows.Delete(labels)
}

// Of returns the counters of a version, or nil if it is not loaded and has no
// requests in flight.
func (s *Set) Of(ref infer.ModelRef) *Counters {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if e := s.models[key{ref.ID(), ref.Version}]; e != nil {
		return e.counters
	}
	return s.unloaded[key{ref.ID(), ref.Version}]
}

// snapshot returns the present entries, so that collecting holds up nobody.
func (s *Set) snapshot() map[key]*entry {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return maps.Clone(s.models)
}
