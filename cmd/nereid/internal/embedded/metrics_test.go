package embedded

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// busyModel refuses what waits for a millisecond behind another request.
const busyModel = `
backend: "echo"
max_batch_size: 1
input [{ name: "x" data_type: TYPE_INT32 dims: [1] }]
output [{ name: "y" data_type: TYPE_INT32 dims: [1] }]
instance_group [{ count: 1 kind: KIND_CPU rate_limiter { resources { name: "r" count: 1 } } }]
dynamic_batching { default_queue_policy { default_timeout_microseconds: 1000 } }
parameters [{ key: "execute_us" value: { string_value: "100000" } }]
`

// knownModel has the families of models whose responses are cached.
const knownModel = `
backend: "echo"
max_batch_size: 1
input [{ name: "x" data_type: TYPE_INT32 dims: [1] }]
output [{ name: "y" data_type: TYPE_INT32 dims: [1] }]
instance_group [{ count: 1 kind: KIND_CPU }]
response_cache { enable: true }
`

// sequenceModel has the families that models of sequences alone have.
const sequenceModel = `
backend: "echo"
max_batch_size: 1
input [{ name: "x" data_type: TYPE_INT32 dims: [1] }]
output [{ name: "y" data_type: TYPE_INT32 dims: [1] }]
instance_group [{ count: 1 kind: KIND_CPU }]
sequence_batching {
  state [{ input_name: "sum" output_name: "sum_out" data_type: TYPE_INT32 dims: [1] }]
}
`

// measured is a whole server with the model m, one beside it that is decoupled, and
// one of sequences.
type measured struct {
	t      *testing.T
	server *Server
	http   string
}

func startMeasured(t *testing.T, edit func(*Config)) *measured {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"m": busyModel, "tokens": busyModel + "model_transaction_policy { decoupled: true }", "turns": sequenceModel, "known": knownModel,
	} {
		if err := os.MkdirAll(filepath.Join(dir, name, "1"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "config.pbtxt"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := Default()
	c.Version = "test"
	c.Registry.Repositories = []string{dir}
	c.Gateway.HTTPAddress, c.Gateway.HTTPPort = "127.0.0.1", 0
	c.Gateway.GRPCAddress, c.Gateway.GRPCPort = "127.0.0.1", 0
	c.Admin.MetricsAddress, c.Admin.MetricsPort = "127.0.0.1", 0
	edit(&c)
	core, logs := observer.New(zap.InfoLevel)
	server, err := New(c, zap.New(core), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	m := &measured{t: t, server: server}
	u := &unled{t: t}
	u.eventually("the server to start", func() bool {
		for _, e := range logs.FilterMessage("listening").All() {
			m.http, _ = e.ContextMap()["http"].(string)
		}
		return m.http != "" && logs.FilterMessage("started").Len() > 0
	})
	u.eventually("the machine's load", func() bool { return m.families()["nv_cpu_utilization"] != nil || !c.Host.CPUMetrics.On })
	return m
}

// requests sends some at once, until some were served and some were refused in
// the queue.
func (m *measured) requests() {
	u := &unled{t: m.t, http: m.http}
	u.eventually("requests that are served and such that are refused", func() bool {
		var sent sync.WaitGroup
		for range 4 {
			sent.Go(func() { u.infer(oneRow) })
		}
		sent.Wait()
		families := m.families()
		return count(families["nv_inference_request_success"]) > 0 && count(families["nv_inference_request_failure"]) > 0
	})
}

func (m *measured) families() map[string]*dto.MetricFamily {
	m.t.Helper()
	list, err := m.server.metrics.Gatherer().Gather()
	if err != nil {
		m.t.Fatal(err)
	}
	byName := make(map[string]*dto.MetricFamily, len(list))
	for _, f := range list {
		byName[f.GetName()] = f
	}
	return byName
}

// count sums up a counter's series.
func count(f *dto.MetricFamily) (sum float64) {
	for _, series := range f.GetMetric() {
		sum += series.GetCounter().GetValue()
	}
	return sum
}

// labels are the names of a family's labels.
func labels(f *dto.MetricFamily) string {
	var names []string
	for _, series := range f.GetMetric() {
		for _, label := range series.GetLabel() {
			if !slices.Contains(names, label.GetName()) {
				names = append(names, label.GetName())
			}
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// Triton's families on a server without GPUs, and the switch of each.
const (
	always     = "always"
	host       = "--allow-cpu-metrics (on)"
	counters   = "counter_latencies (on)"
	histograms = "histogram_latencies (off)"
	summaries  = "summary_latencies (off)"
	limited    = "--rate-limit=execution_count (off)"
	cached     = "--cache-config=local,size=BYTES (off)"
)

type family struct{ kind, labels, shown string }

func tritonFamilies() map[string]family {
	all := map[string]family{
		"nv_inference_request_success":             {"counter", "model version", always},
		"nv_inference_request_failure":             {"counter", "model reason version", always},
		"nv_inference_count":                       {"counter", "model version", always},
		"nv_inference_exec_count":                  {"counter", "model version", always},
		"nv_inference_pending_request_count":       {"gauge", "model version", always},
		"nv_inference_first_response_histogram_ms": {"histogram", "model version", histograms},
		"nv_model_load_duration_secs":              {"gauge", "model version", always},
		"nv_cpu_utilization":                       {"gauge", "", host},
		"nv_cpu_memory_total_bytes":                {"gauge", "", host},
		"nv_cpu_memory_used_bytes":                 {"gauge", "", host},
		"nv_pinned_memory_pool_total_bytes":        {"gauge", "", always},
		"nv_pinned_memory_pool_used_bytes":         {"gauge", "", always},
	}
	for name, kind := range map[string]string{"num_hits": "counter", "num_misses": "counter"} {
		all["nv_cache_"+name+"_per_model"] = family{kind, "model version", always}
	}
	for _, outcome := range []string{"hit", "miss"} {
		all["nv_cache_"+outcome+"_duration_per_model"] = family{"counter", "model version", counters}
		all["nv_cache_"+outcome+"_summary_per_model"] = family{"summary", "model version", summaries}
	}
	for _, name := range []string{"util", "num_entries", "num_hits", "num_misses", "num_lookups", "num_evictions", "lookup_duration", "insertion_duration"} {
		all["nv_cache_"+name] = family{"gauge", "", cached}
	}
	for _, time := range []string{"request", "queue", "compute_input", "compute_infer", "compute_output"} {
		all["nv_inference_"+time+"_duration_us"] = family{"counter", "model version", counters}
		all["nv_inference_"+time+"_summary_us"] = family{"summary", "model version", summaries}
	}
	return all
}

// tritons are the families among those of a server that Triton has.
func tritons(families map[string]*dto.MetricFamily) map[string]family {
	known, found := tritonFamilies(), make(map[string]family)
	for name, f := range families {
		if strings.HasPrefix(name, "nv_") {
			found[name] = family{strings.ToLower(f.GetType().String()), labels(f), known[name].shown}
		}
	}
	return found
}

func everything(c *Config) {
	c.Scheduler.MetricsConfig = []string{"histogram_latencies=true", "summary_latencies=true"}
	c.Scheduler.RateLimit = "execution_count"
	c.Gateway.Cache.Config = []string{"local,size=1000000"}
}

func TestTritonsFamiliesAreShownBySwitch(t *testing.T) {
	tests := map[string]struct {
		edit func(*Config)
		want []string
	}{
		"default":    {func(*Config) {}, []string{always, host, counters}},
		"everything": {everything, []string{always, host, counters, histograms, summaries, cached}},
		"least": {func(c *Config) {
			c.Host.CPUMetrics.On, c.Scheduler.MetricsConfig = false, []string{"counter_latencies=false"}
		}, []string{always}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			want := tritonFamilies()
			for name, f := range want {
				if !slices.Contains(tt.want, f.shown) {
					delete(want, name)
				}
			}
			m := startMeasured(t, tt.edit)
			before := m.families()
			if diff := cmp.Diff(want, tritons(before), cmp.AllowUnexported(family{})); diff != "" {
				t.Errorf("before requests (-want +got):\n%s", diff)
			}
			for name, f := range before {
				if strings.HasPrefix(name, "nv_inference_") && count(f) != 0 {
					t.Errorf("%s is %v before requests", name, count(f))
				}
			}
			m.requests()
			after := m.families()
			if diff := cmp.Diff(want, tritons(after), cmp.AllowUnexported(family{})); diff != "" {
				t.Errorf("after requests (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPlaceIsOnTheSeriesOfAllServices(t *testing.T) {
	m := startMeasured(t, func(c *Config) { c.Admin.MetricsLabel = []string{"cluster=eu"} })
	m.requests()
	for name, f := range m.families() {
		if !strings.Contains(labels(f), "cluster") {
			t.Errorf("%s has the labels %s", name, labels(f))
		}
	}
}

// policed are the families of a server with a policy in shadow mode.
func policed(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte("version: 1\nshadow: true\nretries: {budget: 10%}\nanonymous: {tier: t}\ntiers: {t: {models: [none]}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m := startMeasured(t, func(c *Config) { c.Gateway.Policy = file })
	m.requests()
	u := &unled{t: t, http: m.http}
	u.eventually("a retry and a cost", func() bool {
		body := `{"inputs":[{"name":"x","datatype":"INT32","shape":[` + oneRow + `]}]}`
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+m.http+"/v2/models/m/infer", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-Envoy-Attempt-Count", "2")
		response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		families := m.families()
		return families["nereid_gateway_retries_total"] != nil && families["nereid_gateway_cost_error_ratio"] != nil
	})
	return m.families()
}

// page is beside the other reference pages.
const page = "../../../../docs/reference/metrics.md"

var update = flag.Bool("update", false, "write "+page)

func TestReferenceOfMetrics(t *testing.T) {
	m := startMeasured(t, everything)
	m.requests()
	var own []string
	families := m.families()
	// A server has one cache. The Redis of this one is away.
	redis := startMeasured(t, func(c *Config) { c.Gateway.Cache.Config = []string{"redis,host=127.0.0.1,port=1"} })
	for name, f := range redis.families() {
		if strings.HasPrefix(name, redisFamilies) {
			families[name] = f
		}
	}
	for name, f := range policed(t) {
		if strings.Contains(name, "tenant") || strings.Contains(name, "policy") || strings.Contains(name, "retries") || strings.Contains(name, "cost") {
			families[name] = f
		}
	}
	for name := range families {
		if strings.HasPrefix(name, "nereid_") {
			own = append(own, name)
		}
	}
	problems, err := testutil.GatherAndLint(m.server.metrics.Gatherer(), own...)
	if err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
	got := reference(families)
	if *update {
		if err := os.WriteFile(page, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s is not what a server shows (-page +server); go test ./cmd/nereid/internal/embedded -run Reference -update writes it:\n%s", page, diff)
	}
}

const redisFamilies = "nereid_gateway_redis_"

func reference(families map[string]*dto.MetricFamily) string {
	var b strings.Builder
	b.WriteString(introduction)
	for _, part := range []struct{ prefix, heading string }{
		{"nv_", "Under Triton's names"}, {"nereid_", "Nereid's own"},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n| family | type | labels | unit | shown | meaning |\n|---|---|---|---|---|---|\n", part.heading)
		var names []string
		for name := range families {
			if strings.HasPrefix(name, part.prefix) {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		for _, name := range names {
			f, shown := families[name], tritonFamilies()[name].shown
			switch {
			case strings.HasPrefix(name, "nereid_scheduler_resource_"):
				shown = limited
			case strings.HasPrefix(name, redisFamilies):
				shown = "--cache-config=redis,host=HOST (off)"
			case shown == "":
				shown = always
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n",
				name, strings.ToLower(f.GetType().String()), labels(f), unit(name), shown, f.GetHelp())
		}
	}
	return b.String()
}

func unit(name string) string {
	for _, u := range [][2]string{
		{"_us", "microseconds"},
		{"_ms", "milliseconds"},
		{"_secs", "seconds"},
		{"_seconds", "seconds"},
		{"_bytes", "bytes"},
		{"_duration", "microseconds"},
		{"_duration_per_model", "microseconds"},
		{"_summary_per_model", "microseconds"},
		{"_utilization", "0 to 1"},
		{"_util", "0 to 1"},
		{"_rows", "rows"},
		{"_info", "1"},
	} {
		if strings.HasSuffix(name, u[0]) {
			return u[1]
		}
	}
	return "count"
}

const introduction = `<!-- Generated by go test ./cmd/nereid/internal/embedded -run Reference -update. Do not edit. -->
# Metrics

` + "`GET /metrics`" + ` on ` + "`--metrics-port`" + ` (8002) shows what a server does in Prometheus's text format. Beside the families below there are
those of the Go runtime and the process (` + "`go_*`, `process_*`, `promhttp_*`" + `).

- ` + "`--metrics-config=KEY=VALUE`" + ` switches the forms of times: ` + "`counter_latencies`, `histogram_latencies` and `summary_latencies`" + `.
  Quantiles of summaries are over the last minute; ` + "`summary_quantiles=0.5:0.05,0.99:0.001`" + ` names them, each with the error that its rank
  may have.
- The series of a model version are there, at 0, from its load to its unload. Its ` + "`metric_tags`" + ` are labels of the ` + "`nv_*`" + ` series behind an
  underscore, and its ` + "`model_metrics`" + ` sets the buckets of its histograms. A change of either shows after the version was unloaded and loaded.
- ` + "`reason`" + ` of ` + "`nv_inference_request_failure`" + ` is REJECTED for requests that were refused by the queue or for their deadline, CANCELED for those whose
  client went away or whose deadline passed while they ran, BACKEND for those that the model failed, and OTHER. That of ` + "`nereid_*`" + ` is a word
  of [errors.md](errors.md).
- ` + "`nv_inference_first_response_histogram_ms`" + ` is shown for decoupled models, as in Triton. It counts requests at their end that have had a response,
  those too that failed after it. Its buckets end at 100, 500, 2000 and 5000 ms unless ` + "`model_metrics`" + ` sets them.
- The machine is looked at each ` + "`--metrics-interval-ms`" + `.
- ` + "`--metrics-label=cluster=NAME`" + `, likewise ` + "`node` and `pod`" + `, is a label of all series.
- ` + "`nv_cache_*_per_model`" + ` is shown for models with ` + "`response_cache` or `requests.share_in_flight`" + `, and the schedulers count it; ` + "`nv_inference_request_summary_us`" + ` is shown
  for the others. The other ` + "`nv_cache_*`" + ` are those of one gateway's local cache. See [the guide](../guides/response-cache.md).
- There are no GPUs, so that ` + "`nv_gpu_*` and `nv_energy_consumption`" + ` are not there. The pool of pinned
  memory, which Triton shows whatever the machine has, is shown with 0 bytes.
`
