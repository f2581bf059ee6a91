package obs

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/klauspost/compress/gzhttp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/model"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// Metrics are those of a process. What is registered with it carries the
// process's labels beside its own.
type Metrics struct {
	prometheus.Registerer
	registry *prometheus.Registry
	labels   map[string]string
}

// NewMetrics makes a registry with the metrics of the Go runtime and the
// process, and nereid_build_info. labels say where the process runs, see
// [CheckLabels]; they may be nil.
func NewMetrics(version string, labels map[string]string) *Metrics {
	registry := prometheus.NewRegistry()
	m := &Metrics{Registerer: prometheus.WrapRegistererWith(labels, registry), registry: registry, labels: labels}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "nereid_build_info", Help: "Always 1; the version is in the label.",
		ConstLabels: prometheus.Labels{"version": version},
	})
	build.Set(1)
	m.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// CheckLabels refuses labels of a process other than cluster, node and pod:
// others would meet labels of series.
func CheckLabels(labels map[string]string) error {
	allowed := []string{"cluster", "node", "pod"}
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		if !slices.Contains(allowed, name) {
			return errs.New(errs.ConfigInvalid, "metrics cannot have the label %q: it is one of %s", name, strings.Join(allowed, ", "))
		}
		if !model.LabelValue(labels[name]).IsValid() {
			return errs.New(errs.ConfigInvalid, "the metrics' label %s is %q: want UTF-8", name, labels[name])
		}
	}
	return nil
}

// HasLabel reports whether all metrics have a label of the name, so that no series may
// have it of its own.
func (m *Metrics) HasLabel(name string) bool {
	_, there := m.labels[name]
	return there
}

// Gatherer returns what all metrics are read from.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.registry }

// Handler serves the metrics as GET /metrics. A family that cannot be collected fails the
// scrape, so that no scrape is incomplete. Values of the text format have no exponents.
func (m *Metrics) Handler() http.Handler {
	mux := http.NewServeMux()
	// Compression comes after the text is final.
	samples := promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m, DisableCompression: true})
	mux.Handle("GET /metrics", gzhttp.GzipHandler(inDigits(samples)))
	return mux
}

// ModelLabels are the labels of a model version's series: model, version,
// namespace if it has one, and the model's own tags behind an underscore. Tags that cannot be labels are
// left out.
func ModelLabels(ref infer.ModelRef, tags map[string]string) prometheus.Labels {
	labels := prometheus.Labels{"model": ref.Name, "version": strconv.FormatInt(ref.Version, 10)}
	if ref.Namespace != "" {
		labels["namespace"] = ref.Namespace
	}
	for tag, value := range tags {
		// Prometheus keeps names with two leading underscores to itself.
		if name := "_" + tag; model.LegacyValidation.IsValidLabelName(name) && !strings.HasPrefix(tag, "_") {
			labels[name] = value
		}
	}
	return labels
}
