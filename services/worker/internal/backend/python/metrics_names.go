package python

import (
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	prometheusmodel "github.com/prometheus/common/model"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/python/stub"
)

// reserved begins the names of families that the server has, or Triton has: one that a
// model had too could keep all metrics from being shown.
func reserved(name string) bool {
	return slices.ContainsFunc([]string{
		"nereid_", "go_", "process_", "promhttp_", "nv_inference_", "nv_model_", "nv_cache_", "nv_cpu_", "nv_gpu_", "nv_energy_", "nv_pinned_",
	}, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// checkFamilyLocked says what is wrong with a new family.
func (m *metrics) checkFamilyLocked(f *stub.Message) *errs.Error {
	switch {
	case f.Kind != counter && f.Kind != gauge && f.Kind != histogram:
		return refuse("there is no kind %q of metrics", f.Kind)
	case !prometheusmodel.LegacyValidation.IsValidMetricName(f.Name):
		return refuse("Invalid metric name %q: it has letters, digits, _ and :, and does not begin with a digit", f.Name)
	case !utf8.ValidString(f.Text):
		return refuse("the description of %s is no UTF-8", f.Name)
	case reserved(f.Name):
		return refuse("the name %s is kept for the server's own metrics: give the family a prefix of its own", f.Name)
	}
	if other := m.collidesLocked(f); other != "" {
		return refuse("the names of %s and %s collide: a histogram has series that end in _bucket, _sum and _count", f.Name, other)
	}
	return nil
}

// collidesLocked finds a family of which one has the name of the other's series.
func (m *metrics) collidesLocked(f *stub.Message) string {
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if base, ok := strings.CutSuffix(f.Name, suffix); ok && m.families[base] != nil && m.families[base].kind == histogram {
			return base
		}
		if f.Kind == histogram && m.families[f.Name+suffix] != nil {
			return f.Name + suffix
		}
	}
	return ""
}

// checkMetric says what is wrong with a metric of a family.
func (m *metrics) checkMetric(f *family, of *stub.Message) *errs.Error {
	if len(of.Labels) > maxLabels || len(of.Buckets) > maxBuckets {
		return refuse("a metric has at most %d labels and %d buckets", maxLabels, maxBuckets)
	}
	for i, l := range of.Labels {
		switch {
		case !prometheusmodel.LegacyValidation.IsValidLabelName(l.Key) || strings.HasPrefix(l.Key, prometheusmodel.ReservedLabelPrefix) || f.kind == histogram && l.Key == prometheusmodel.BucketLabel:
			return refuse("Invalid label name %q", l.Key)
		case m.taken != nil && m.taken(l.Key):
			return refuse("the label %s is the server's own (--metrics-label): give another name", l.Key)
		}
		for _, other := range of.Labels[:i] {
			if other.Key == l.Key {
				return refuse("Invalid label name %q: it is given twice", l.Key)
			}
		}
	}
	for i, bound := range of.Buckets {
		if math.IsNaN(bound) || math.IsInf(bound, 0) || i > 0 && bound <= of.Buckets[i-1] {
			return refuse("the buckets do not ascend")
		}
	}
	return nil
}
