package python

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/python/stub"
)

// What models may have of metrics.
const (
	maxFamilies = 1 << 12
	maxSeries   = 1 << 16
	maxLabels   = 64
	maxBuckets  = 1 << 10
)

// The kinds of families.
const (
	counter   = "COUNTER"
	gauge     = "GAUGE"
	histogram = "HISTOGRAM"
)

// metrics are those that models make. A family and a series are shared by all stubs
// that name them alike, and go with the last that does. It is safe for concurrent use.
type metrics struct {
	registry prometheus.Registerer
	// taken says whether all series of the process have a label of the name; it may be nil.
	taken func(label string) bool

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
	if own, ok := registry.(interface{ HasLabel(name string) bool }); ok {
		m.taken = own.HasLabel
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
	if kind != histogram {
		t := prometheus.GaugeValue
		if kind == counter {
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

// take takes a message about metrics. What a model may not have is refused, which the
// stub is told; an error says that it is no message that a stub may send.
func (u *stubMetrics) take(m *stub.Message) (refused *errs.Error, err error) {
	u.all.mu.Lock()
	defer u.all.mu.Unlock()
	switch {
	case m.Type == stub.Sample:
		return nil, u.sample(m)
	case m.Op == "end":
		return nil, u.endFamily(m.Family)
	case m.ID == 0:
		return nil, fmt.Errorf("the stub sent %s without an id", m.Type)
	case m.Type == stub.Family:
		return u.family(m)
	}
	return u.metric(m)
}

// refuse is what the model gets in place of a metric, in Triton's words where it has
// some.
func refuse(format string, args ...any) *errs.Error {
	return errs.New(errs.ModelRefused, format, args...)
}

func (u *stubMetrics) family(m *stub.Message) (refused *errs.Error, err error) {
	if u.families[m.Family] != nil {
		return nil, fmt.Errorf("the stub has two families of metrics of the number %d", m.Family)
	}
	if len(u.families) >= maxFamilies {
		return refuse("a model has at most %d families of metrics", maxFamilies), nil
	}
	f := u.all.families[m.Name]
	switch {
	case f == nil && len(u.all.families) >= maxFamilies:
		return refuse("all models together have at most %d families of metrics", maxFamilies), nil
	case f == nil:
		if refused := u.all.checkFamilyLocked(m); refused != nil {
			return refused, nil
		}
		f = &family{name: m.Name, text: m.Text, kind: m.Kind, series: make(map[string]*series)}
		u.all.families[m.Name] = f
	case f.kind != m.Kind:
		return refuse("Family name already exists with different type: %s is a %s and no %s", m.Name, f.kind, m.Kind), nil
	}
	f.users++
	u.families[m.Family] = f
	return nil, nil
}

func (u *stubMetrics) metric(m *stub.Message) (refused *errs.Error, err error) {
	f := u.families[m.Family]
	if _, there := u.series[m.Metric]; f == nil || there {
		return nil, errors.New("the stub made a metric of a family that is not there, or twice")
	}
	if refused := u.all.checkMetric(f, m); refused != nil {
		return refused, nil
	}
	slices.SortFunc(m.Labels, func(a, b infer.Parameter) int { return strings.Compare(a.Key, b.Key) })
	var names, values []string
	for _, l := range m.Labels {
		text, ok := l.Value.(string)
		if !ok {
			return nil, fmt.Errorf("the label %s of a metric of the stub is no text", l.Key)
		}
		names, values = append(names, l.Key), append(values, strings.ToValidUTF8(text, "\uFFFD"))
	}
	key := fmt.Sprintf("%q %q", names, values)
	s := f.series[key]
	if s == nil {
		if u.all.count >= maxSeries {
			return refuse("all models together have at most %d metrics", maxSeries), nil
		}
		s = &series{key: key, desc: prometheus.NewDesc(f.name, f.text, names, nil), labels: values, bounds: m.Buckets, counts: make([]uint64, len(m.Buckets)+1)}
		f.series[key] = s
		u.all.count++
	}
	s.users++
	u.series[m.Metric] = seriesOf{f, s}
	return nil, nil
}

func (u *stubMetrics) sample(m *stub.Message) error {
	s, ok := u.series[m.Metric]
	if !ok {
		return fmt.Errorf("the stub has no metric %d", m.Metric)
	}
	switch kind := s.family.kind; {
	case m.Op == "end":
		delete(u.series, m.Metric)
		u.end(s)
	case m.Op == "add" && (kind == gauge || kind == counter && m.Number >= 0):
		s.value += m.Number
	case m.Op == "set" && kind == gauge:
		s.value = m.Number
	case m.Op == "observe" && kind == histogram:
		i, _ := slices.BinarySearch(s.bounds, m.Number)
		s.counts[i]++
		s.sum += m.Number
		s.observations++
	default:
		return fmt.Errorf("the stub has a %s do %q of %v", kind, m.Op, m.Number)
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

func (u *stubMetrics) endFamily(number uint64) error {
	f := u.families[number]
	if f == nil {
		return fmt.Errorf("the stub has no family %d of metrics", number)
	}
	delete(u.families, number)
	u.all.leaveLocked(f)
	return nil
}

// leaveLocked gives up a use of a family. It goes with the last, when its series, which
// models hold with it, have gone.
func (m *metrics) leaveLocked(f *family) {
	if f.users--; f.users == 0 && m.families[f.name] == f {
		delete(m.families, f.name)
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
		u.all.leaveLocked(f)
	}
}
