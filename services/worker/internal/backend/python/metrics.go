package python

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nereid-serving/nereid/services/worker/internal/backend/python/stub"
)

// What models may have of metrics.
const (
	maxFamilies = 1 << 12
	maxSeries   = 1 << 16
	maxLabels   = 64
)

// metrics are those that models make. A family and a series are shared by all stubs
// that name them alike, and go with the last that does. It is safe for concurrent use.
type metrics struct {
	registry prometheus.Registerer

	mu       sync.Mutex
	families map[string]*family // by name; guarded by mu
	count    int                // of series; guarded by mu
}

type family struct {
	name, text, kind string
	series           map[string]*series // by their labels
	users            int
}

// series is one metric of a family.
type series struct {
	key          string
	desc         *prometheus.Desc
	labels       []string // values
	value        float64
	bounds       []float64
	counts       []uint64 // by bound, and of what is above all
	sum          float64
	observations uint64
	users        int
}

func newMetrics(registry prometheus.Registerer) (*metrics, error) {
	m := &metrics{registry: registry, families: make(map[string]*family)}
	if registry == nil {
		return m, nil
	}
	return m, registry.Register(m)
}

func (m *metrics) close() {
	if m.registry != nil {
		m.registry.Unregister(m)
	}
}

// Describe says nothing: what models make is not known beforehand.
func (*metrics) Describe(chan<- *prometheus.Desc) {}

// Collect gives all series.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range m.families {
		for _, s := range f.series {
			out <- s.metric(f.kind)
		}
	}
}

func (s *series) metric(kind string) prometheus.Metric {
	if kind != "HISTOGRAM" {
		t := prometheus.GaugeValue
		if kind == "COUNTER" {
			t = prometheus.CounterValue
		}
		return prometheus.MustNewConstMetric(s.desc, t, s.value, s.labels...)
	}
	buckets, sum := make(map[float64]uint64, len(s.bounds)), uint64(0)
	for i, bound := range s.bounds {
		sum += s.counts[i]
		buckets[bound] = sum
	}
	return prometheus.MustNewConstHistogram(s.desc, s.observations, s.sum, buckets, s.labels...)
}

// stubMetrics are those that one stub uses, by its numbers. It is used by one
// goroutine.
type stubMetrics struct {
	all      *metrics
	families map[uint64]*family
	series   map[uint64]seriesOf
}

type seriesOf struct {
	family *family
	*series
}

func (m *metrics) stub() stubMetrics {
	return stubMetrics{all: m, families: make(map[uint64]*family), series: make(map[uint64]seriesOf)}
}

// take takes a message about metrics.
func (u *stubMetrics) take(m *stub.Message) error {
	u.all.mu.Lock()
	defer u.all.mu.Unlock()
	switch m.Type {
	case stub.Family:
		return u.family(m)
	case stub.Metric:
		return u.metric(m)
	default:
		return u.sample(m)
	}
}

func (u *stubMetrics) family(m *stub.Message) error {
	if u.families[m.Family] != nil {
		return fmt.Errorf("the stub has two families of metrics of the number %d", m.Family)
	}
	f := u.all.families[m.Name]
	switch {
	case f == nil && len(u.all.families) >= maxFamilies:
		return fmt.Errorf("models have more than %d families of metrics", maxFamilies)
	case f == nil:
		f = &family{name: m.Name, text: m.Text, kind: m.Kind, series: make(map[string]*series)}
		u.all.families[m.Name] = f
	case f.kind != m.Kind:
		return fmt.Errorf("the family %s of metrics is %s, and was made as %s", m.Name, m.Kind, f.kind)
	}
	f.users++
	u.families[m.Family] = f
	return nil
}

func (u *stubMetrics) metric(m *stub.Message) error {
	f := u.families[m.Family]
	if _, there := u.series[m.Metric]; f == nil || there || len(m.Labels) > maxLabels {
		return errors.New("the stub made a metric of a family that is not there, or twice, or with too many labels")
	}
	var names, values []string
	for _, l := range m.Labels {
		text, ok := l.Value.(string)
		if !ok {
			return fmt.Errorf("the label %s of a metric of the stub is no text", l.Key)
		}
		names, values = append(names, l.Key), append(values, text)
	}
	key := fmt.Sprintf("%q %q", names, values)
	s := f.series[key]
	if s == nil {
		if u.all.count >= maxSeries {
			return fmt.Errorf("models have more than %d metrics", maxSeries)
		}
		if !slices.IsSorted(m.Buckets) {
			return errors.New("the buckets of a metric of the stub do not ascend")
		}
		s = &series{key: key, desc: prometheus.NewDesc(f.name, f.text, names, nil), labels: values, bounds: m.Buckets, counts: make([]uint64, len(m.Buckets)+1)}
		f.series[key] = s
		u.all.count++
	}
	s.users++
	u.series[m.Metric] = seriesOf{f, s}
	return nil
}

func (u *stubMetrics) sample(m *stub.Message) error {
	s, ok := u.series[m.Metric]
	if !ok {
		return fmt.Errorf("the stub has no metric %d", m.Metric)
	}
	switch m.Op {
	case "add":
		s.value += m.Number
	case "set":
		s.value = m.Number
	case "observe":
		i, _ := slices.BinarySearch(s.bounds, m.Number)
		s.counts[i]++
		s.sum += m.Number
		s.observations++
	case "end":
		delete(u.series, m.Metric)
		u.end(s)
	default:
		return fmt.Errorf("the stub has metrics do %s", strings.ToValidUTF8(m.Op, ""))
	}
	return nil
}

// end gives a series up.
func (u *stubMetrics) end(s seriesOf) {
	if s.users--; s.users == 0 {
		delete(s.family.series, s.key)
		u.all.count--
	}
}

func (u *stubMetrics) value(metric uint64) (float64, error) {
	u.all.mu.Lock()
	defer u.all.mu.Unlock()
	s, ok := u.series[metric]
	if !ok {
		return 0, fmt.Errorf("the stub has no metric %d", metric)
	}
	return s.value, nil
}

// close gives up what the stub used.
func (u *stubMetrics) close() {
	u.all.mu.Lock()
	defer u.all.mu.Unlock()
	for _, s := range u.series {
		u.end(s)
	}
	for _, f := range u.families {
		if f.users--; f.users == 0 {
			delete(u.all.families, f.name)
		}
	}
}
