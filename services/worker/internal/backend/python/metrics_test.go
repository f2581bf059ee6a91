package python

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/python/stub"
)

// say has a stub send messages about metrics, until one is refused or is none.
func say(t *testing.T, u *stubMetrics, headers ...string) (refused *errs.Error, err error) {
	t.Helper()
	for _, h := range headers {
		var m stub.Message
		if err := m.Parse([]byte(h)); err != nil {
			t.Fatal(err)
		}
		if refused, err = u.take(&m); err != nil || refused != nil {
			return refused, err
		}
	}
	return nil, nil
}

const (
	things = `{"t":"family","id":1,"family":1,"name":"things","text":"Things.","kind":"COUNTER"}`
	ofM    = `{"t":"metric","id":2,"family":1,"metric":1,"labels":{"of":"m"}}`
	sizes  = `{"t":"family","id":3,"family":2,"name":"sizes","text":"Sizes.","kind":"HISTOGRAM"}`
	sizesM = `{"t":"metric","id":4,"family":2,"metric":2,"labels":{},"buckets":[1,2.5]}`
)

func TestStubsShareMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	all, err := newMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	a, b := all.stub(), all.stub()
	for _, u := range []*stubMetrics{&a, &b} {
		refused, err := say(t, u, things, ofM, `{"t":"sample","metric":1,"op":"add","value":2}`, sizes, sizesM,
			`{"t":"sample","metric":2,"op":"observe","value":2.5}`, `{"t":"sample","metric":2,"op":"observe","value":3}`)
		if refused != nil || err != nil {
			t.Fatal(refused, err)
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
	if refused, err := say(t, &b, `{"t":"sample","metric":1,"op":"end"}`, `{"t":"family","family":1,"op":"end"}`); refused != nil || err != nil {
		t.Error(refused, err)
	}
	if all.families["things"] != nil {
		t.Error("a family stays that nobody uses")
	}
	b.close()
	if n, err := testutil.GatherAndCount(registry); n != 0 || err != nil {
		t.Errorf("%d metrics are left, %v", n, err)
	}
}

func TestMessagesAboutMetricsThatAreNone(t *testing.T) {
	for name, said := range map[string][]string{
		"a number twice":           {things, things},
		"of no family":             {ofM},
		"a metric twice":           {things, ofM, ofM},
		"a label that is a number": {things, `{"t":"metric","id":2,"family":1,"metric":1,"labels":{"of":1}}`},
		"a sample of nothing":      {`{"t":"sample","metric":1,"op":"add","value":2}`},
		"an unknown operation":     {things, ofM, `{"t":"sample","metric":1,"op":"double","value":2}`},
		"a counter that falls":     {things, ofM, `{"t":"sample","metric":1,"op":"add","value":-2}`},
		"a counter that is set":    {things, ofM, `{"t":"sample","metric":1,"op":"set","value":2}`},
		"nobody waits":             {`{"t":"family","family":1,"name":"things","kind":"COUNTER"}`},
		"the end of no family":     {`{"t":"family","family":1,"op":"end"}`},
	} {
		t.Run(name, func(t *testing.T) {
			u := (&metrics{families: make(map[string]*family)}).stub()
			if refused, err := say(t, &u, said...); err == nil {
				t.Errorf("it was taken; refused: %v", refused)
			}
		})
	}
}

// TestMetricsThatWouldKeepAllFromBeingShown has models make each; what is not refused
// has to be shown.
func TestMetricsThatWouldKeepAllFromBeingShown(t *testing.T) {
	family := func(name, kind string) string {
		return `{"t":"family","id":9,"family":9,"name":"` + name + `","text":"Others.","kind":"` + kind + `"}`
	}
	metric := func(family, rest string) string {
		return `{"t":"metric","id":9,"family":` + family + `,"metric":9,` + rest + `}`
	}
	for name, c := range map[string]struct{ said, refused string }{
		"another kind":               {family("things", "GAUGE"), "Family name already exists with different type: things is a COUNTER and no GAUGE"},
		"another text":               {family("things", "COUNTER"), ""},
		"no kind":                    {family("others", "SUMMARY"), "no kind"},
		"no name":                    {family("", "GAUGE"), "Invalid metric name"},
		"a name with a space":        {family("a b", "GAUGE"), "Invalid metric name"},
		"a name of the server":       {family("nereid_worker_things", "GAUGE"), "kept for the server"},
		"a series of a histogram":    {family("sizes_sum", "GAUGE"), "sizes_sum and sizes collide"},
		"a histogram with series":    {family("rows", "HISTOGRAM"), "rows and rows_count collide"},
		"a label with a space":       {metric("1", `"labels":{"a b":"m"}`), "Invalid label name"},
		"a reserved label":           {metric("1", `"labels":{"__a":"m"}`), "Invalid label name"},
		"a label twice":              {metric("1", `"labels":{"a":"m","a":"n"}`), "twice"},
		"the label of buckets":       {metric("2", `"labels":{"le":"m"},"buckets":[1]`), "Invalid label name"},
		"a label of the process":     {metric("1", `"labels":{"node":"m"}`), "--metrics-label"},
		"a value that is no UTF-8":   {metric("1", "\"labels\":{\"a\":\"\xff\"}"), ""},
		"labels in another order":    {metric("1", `"labels":{"b":"n","a":"m"}`), ""},
		"other labels":               {metric("1", `"labels":{"as":"m"}`), ""},
		"buckets that do not ascend": {metric("2", `"labels":{},"buckets":[2,1]`), "do not ascend"},
		"a bucket without an end":    {metric("2", `"labels":{},"buckets":[1,Infinity]`), "do not ascend"},
		"other buckets":              {metric("2", `"labels":{},"buckets":[1,7]`), ""},
	} {
		t.Run(name, func(t *testing.T) {
			registry := obs.NewMetrics("", map[string]string{"node": "n"})
			all, err := newMetrics(registry)
			if err != nil {
				t.Fatal(err)
			}
			u := all.stub()
			made := []string{
				things, ofM, sizes, sizesM, `{"t":"metric","id":2,"family":1,"metric":3,"labels":{"a":"m","b":"n"}}`,
				`{"t":"family","id":1,"family":3,"name":"rows_count","kind":"COUNTER"}`, `{"t":"metric","id":2,"family":3,"metric":4}`,
			}
			if refused, err := say(t, &u, made...); refused != nil || err != nil {
				t.Fatal(refused, err)
			}
			refused, err := say(t, &u, c.said)
			if err != nil {
				t.Fatal(err)
			}
			if c.refused == "" && refused != nil || c.refused != "" && (refused == nil || !strings.Contains(refused.Msg, c.refused)) {
				t.Errorf("refused: %v, want %q", refused, c.refused)
			}
			if strings.HasPrefix(c.said, `{"t":"family"`) && refused == nil {
				if refused, err := say(t, &u, metric("9", `"labels":{"more":"m"}`)); refused != nil || err != nil {
					t.Fatal(refused, err)
				}
			}
			if _, err := registry.Gatherer().Gather(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAllFamiliesOfTheServerAreItsOwn(t *testing.T) {
	page, err := os.ReadFile("../../../../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile("(?m)^\\| `([a-z_]+)`").FindAllStringSubmatch(string(page), -1)
	if len(names) < 20 {
		t.Fatalf("the page has %d families", len(names))
	}
	for _, n := range names {
		if !reserved(n[1]) {
			t.Errorf("a model may have a family %s, which the server has", n[1])
		}
	}
}
