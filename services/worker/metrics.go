package worker

import (
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/reconcile"
)

// metrics are the worker's own. The label values of models are those of the versions that the worker has: when a
// version is gone, its series are deleted.
type metrics struct {
	pool       *tensor.Pool
	executions *prometheus.HistogramVec
	loads      *prometheus.HistogramVec
	triton     *tritonSeries
	stateBytes *prometheus.GaugeVec
	// batchMemory is how much memory the inputs of batches may use.
	batchMemory prometheus.Gauge

	instances, memory *prometheus.Desc

	mu    sync.Mutex
	shown map[infer.ModelID][]reconcile.VersionStatus // by model; guarded by mu
}

type version struct {
	model  infer.ModelID
	number int64
}

func (v version) labels() []string {
	return []string{v.model.String(), strconv.FormatInt(v.number, 10)}
}

// The outcomes of a load, as label values.
const (
	loadFailed    = "failure"
	loadSucceeded = "success"
)

// newMetrics creates the metrics and, if there is a registry, registers them.
func newMetrics(registry prometheus.Registerer, pool *tensor.Pool, pinned *backend.PinnedMemory) (*metrics, error) {
	native := prometheus.HistogramOpts{NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160}
	executions, loads := native, native
	executions.Name, executions.Help = "nereid_worker_execution_seconds", "Time of a batch in its instance, from the start of the gathering to the last output."
	executions.Buckets = prometheus.ExponentialBuckets(50e-6, 2.5, 14)
	loads.Name, loads.Help = "nereid_worker_load_seconds", "Time to load a model version and make its instances."
	loads.Buckets = prometheus.ExponentialBuckets(1e-3, 4, 9)
	m := &metrics{
		pool:       pool,
		executions: prometheus.NewHistogramVec(executions, []string{"model", "version"}),
		loads:      prometheus.NewHistogramVec(loads, []string{"outcome"}),
		instances:  prometheus.NewDesc("nereid_worker_instances", "Instances of a model version by state.", []string{"model", "version", "state"}, nil),
		memory:     prometheus.NewDesc("nereid_worker_tensor_memory_bytes", "Mapped memory for tensors.", []string{"state"}, nil),
		triton:     newTritonSeries(pinned),
		stateBytes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "nereid_worker_sequence_state_bytes", Help: "Memory of the states of live sequences.",
		}, []string{"model", "version"}),
		batchMemory: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "nereid_worker_batch_memory_limit_bytes", Help: "What the inputs of the worker's batches may take together; 0 is no bound.",
		}),
		shown: make(map[infer.ModelID][]reconcile.VersionStatus),
	}
	for _, outcome := range []string{loadFailed, loadSucceeded} {
		m.loads.WithLabelValues(outcome) // a series that starts with its first event shows no increase
	}
	if registry == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m, m.executions, m.loads, m.triton, m.stateBytes, m.batchMemory} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// execution returns a function that observes the batches of an instance.
func (m *metrics) execution(ref infer.ModelRef) func(infer.Timing) {
	series := m.executions.WithLabelValues(version{ref.ID(), ref.Version}.labels()...)
	return func(t infer.Timing) { series.Observe(t.Done.Sub(t.Start).Seconds()) }
}

// states returns a function that records by how much the memory of a version's states grows. A version without states
// has no series.
func (m *metrics) states(v backend.Version) func(bytes int64) {
	if v.Config.Sequences == nil || len(v.Config.Sequences.States) == 0 {
		return func(int64) {}
	}
	series := m.stateBytes.WithLabelValues(version{v.Ref.ID(), v.Ref.Version}.labels()...)
	return func(bytes int64) { series.Add(float64(bytes)) }
}

func (m *metrics) loaded(v backend.Version, took time.Duration, err error) {
	outcome := loadFailed
	if err == nil {
		outcome = loadSucceeded
		m.triton.loaded(v, took)
	}
	m.loads.WithLabelValues(outcome).Observe(took.Seconds())
}

// show records the versions of a model that the worker has, and drops the series of those that it no longer has.
func (m *metrics) show(model infer.ModelID, versions []reconcile.VersionStatus) {
	m.mu.Lock()
	before := m.shown[model]
	if m.shown[model] = versions; versions == nil {
		delete(m.shown, model)
	}
	m.mu.Unlock()
	for _, b := range before {
		held := func(v reconcile.VersionStatus) bool { return v.Ref.Version == b.Ref.Version }
		if !slices.ContainsFunc(versions, held) {
			gone := version{model, b.Ref.Version}
			m.executions.DeleteLabelValues(gone.labels()...)
			m.triton.unloaded(gone)
			m.stateBytes.DeleteLabelValues(gone.labels()...)
		}
	}
}

// Describe sends the descriptors of instances and memory.
func (m *metrics) Describe(out chan<- *prometheus.Desc) {
	out <- m.instances
	out <- m.memory
}

// Collect sends the current instances and memory.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	memory := m.pool.Stats()
	out <- prometheus.MustNewConstMetric(m.memory, prometheus.GaugeValue, float64(memory.InUse), "in_use")
	out <- prometheus.MustNewConstMetric(m.memory, prometheus.GaugeValue, float64(memory.Free), "free")
	type series struct {
		version
		state infer.InstanceState
	}
	counts := make(map[series]int)
	m.mu.Lock()
	for model, versions := range m.shown {
		for _, v := range versions {
			for i := range v.Instances {
				counts[series{version{model, v.Ref.Version}, v.InstanceState(i)}]++
			}
		}
	}
	m.mu.Unlock()
	for s, n := range counts {
		out <- prometheus.MustNewConstMetric(m.instances, prometheus.GaugeValue, float64(n), append(s.labels(), s.state.String())...)
	}
}
