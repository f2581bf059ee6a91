package python

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nereid-serving/nereid/services/worker/internal/backend/python/stub"
)

// say has a stub send messages about metrics, until one is refused.
func say(t *testing.T, u *stubMetrics, headers ...string) error {
	t.Helper()
	for _, h := range headers {
		var m stub.Message
		if err := m.Parse([]byte(h)); err != nil {
			t.Fatal(err)
		}
		if err := u.take(&m); err != nil {
			return err
		}
	}
	return nil
}

const (
	counter   = `{"t":"family","family":1,"name":"things","text":"Things.","kind":"COUNTER"}`
	ofM       = `{"t":"metric","family":1,"metric":1,"labels":{"of":"m"}}`
	histogram = `{"t":"family","family":2,"name":"sizes","text":"Sizes.","kind":"HISTOGRAM"}`
	sizes     = `{"t":"metric","family":2,"metric":2,"labels":{},"buckets":[1,2.5]}`
)

func TestStubsShareMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	all, err := newMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	a, b := all.stub(), all.stub()
	for _, u := range []*stubMetrics{&a, &b} {
		err := say(t, u, counter, ofM, `{"t":"sample","metric":1,"op":"add","value":2}`, histogram, sizes,
			`{"t":"sample","metric":2,"op":"observe","value":2.5}`, `{"t":"sample","metric":2,"op":"observe","value":3}`)
		if err != nil {
			t.Fatal(err)
		}
	}
	a.close()
	if v, err := b.value(1); v != 4 || err != nil {
		t.Errorf("the value is %v, %v", v, err)
	}
	want := `# HELP sizes Sizes.
# TYPE sizes histogram
sizes_bucket{le="1"} 0
sizes_bucket{le="2.5"} 2
sizes_bucket{le="+Inf"} 4
sizes_sum 11
sizes_count 4
# HELP things Things.
# TYPE things counter
things{of="m"} 4
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	if err := say(t, &b, `{"t":"sample","metric":1,"op":"end"}`); err != nil {
		t.Error(err)
	}
	b.close()
	if n, err := testutil.GatherAndCount(registry); n != 0 || err != nil {
		t.Errorf("%d metrics are left, %v", n, err)
	}
}

func TestMetricsThatContradictThemselves(t *testing.T) {
	for name, said := range map[string][]string{
		"a number twice":            {counter, counter},
		"another kind":              {counter, `{"t":"family","family":2,"name":"things","kind":"GAUGE"}`},
		"of no family":              {ofM},
		"a metric twice":            {counter, ofM, ofM},
		"a label that is a number":  {counter, `{"t":"metric","family":1,"metric":1,"labels":{"of":1}}`},
		"buckets that do not climb": {histogram, `{"t":"metric","family":2,"metric":2,"labels":{},"buckets":[2,1]}`},
		"a sample of nothing":       {`{"t":"sample","metric":1,"op":"add","value":2}`},
		"an unknown operation":      {counter, ofM, `{"t":"sample","metric":1,"op":"double","value":2}`},
	} {
		t.Run(name, func(t *testing.T) {
			all, err := newMetrics(nil)
			if err != nil {
				t.Fatal(err)
			}
			u := all.stub()
			if err := say(t, &u, said...); err == nil {
				t.Error("it was taken")
			}
		})
	}
}
