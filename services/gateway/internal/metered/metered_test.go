package metered_test

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/metered"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/requests"
)

// scheduler answers at once, when so much time has passed, with an error of a
// reason if it has one. It is the clock as well.
type scheduler struct {
	now    mono.Time
	table  *requests.Table
	takes  time.Duration
	reason errs.Reason
}

func (s *scheduler) Now() mono.Time         { return s.now }
func (s *scheduler) Cancel(infer.RequestID) {}
func (s *scheduler) Submit(r *infer.Request) error {
	s.now = s.now.Add(s.takes)
	if s.reason != "" {
		return errs.New(s.reason, "refused")
	}
	s.table.Respond(&infer.Response{Work: r.Work, Final: true})
	r.Release()
	return nil
}

// engine is the way of inferences of one model, whose body and sink it is.
type engine struct {
	*metered.Protocol
	path      *path.Path
	metrics   *metered.Metrics
	scheduler *scheduler
	registry  *prometheus.Registry
	call      path.Call
	limit     time.Duration
}

func newEngine() *engine {
	s := &scheduler{now: 1, table: requests.New(1)}
	e := &engine{scheduler: s, registry: prometheus.NewRegistry()}
	g := core.New(core.ServerInfo{}, core.Deps{Dispatcher: s, Requests: s.table, Clock: s, Pool: tensor.NewPool(0)})
	g.Update(core.NewSnapshot(1, true, []*core.Model{{Name: "m", Versions: []*core.Version{
		{Ref: infer.ModelRef{Name: "m", Version: 1}, Config: &modelconfig.Config{Name: "m"}, State: infer.Ready},
	}}}))
	e.metrics = metered.New(e.registry)
	e.Protocol = e.metrics.Protocol("grpc")
	e.path = path.New(g, path.Protocol{}, path.Options{Meter: e.Protocol, Observers: []path.Observer{{Ended: e.Protocol.Ended}}})
	e.call = path.Call{API: core.InferenceAPI, Model: "m", Body: e, Sink: e}
	return e
}

func (e *engine) Receive() error             { return nil }
func (e *engine) Send(*infer.Response) error { return nil }
func (e *engine) Decode() error {
	if e.limit > 0 {
		e.call.Request.Deadline = e.scheduler.now.Add(e.limit)
	}
	return nil
}

// infer sends a request that has that long to be answered; 0 is for ever.
func (e *engine) infer(t testing.TB, limit time.Duration) {
	t.Helper()
	e.limit = limit
	if err := e.path.Infer(t.Context(), &e.call); errs.Of(err) != e.scheduler.reason {
		t.Fatal(err)
	}
}

func TestWhatCallersSeeIsCounted(t *testing.T) {
	e := newEngine()
	for _, c := range []struct {
		limit, takes time.Duration
		reason       errs.Reason
	}{
		{0, time.Millisecond, ""},
		{time.Second, time.Second, ""},
		{time.Second, time.Second + 1, ""},
		{time.Second, 0, errs.DeadlineUnmeetable},
		{time.Second, 0, errs.DeadlineQueue},
		{time.Second, 0, errs.DeadlineCompute},
		{time.Second, 0, errs.ExecutionFailed},
		{0, 0, errs.QueueFull},
	} {
		e.scheduler.takes, e.scheduler.reason = c.takes, c.reason
		e.infer(t, c.limit)
	}
	e.Failed(errs.ModelNotFound)
	e.metrics.StatisticsMissing()
	want := `
# HELP nereid_gateway_deadlines_total Inference requests with a client's deadline by outcome: met; late, completed after it; unmeetable, refused on arrival; queue and compute, expired while queued and while executing; failed otherwise.
# TYPE nereid_gateway_deadlines_total counter
nereid_gateway_deadlines_total{model="m",outcome="compute"} 1
nereid_gateway_deadlines_total{model="m",outcome="failed"} 1
nereid_gateway_deadlines_total{model="m",outcome="late"} 1
nereid_gateway_deadlines_total{model="m",outcome="met"} 1
nereid_gateway_deadlines_total{model="m",outcome="queue"} 1
nereid_gateway_deadlines_total{model="m",outcome="unmeetable"} 1
# HELP nereid_gateway_errors_total Calls of any endpoint that returned an error, by its reason.
# TYPE nereid_gateway_errors_total counter
nereid_gateway_errors_total{protocol="grpc",reason="model_not_found"} 1
# HELP nereid_gateway_requests_total Inference requests for known models by protocol and by the reason of their failure, which is ok where there is none.
# TYPE nereid_gateway_requests_total counter
nereid_gateway_requests_total{model="m",protocol="grpc",reason="deadline_compute"} 1
nereid_gateway_requests_total{model="m",protocol="grpc",reason="deadline_queue"} 1
nereid_gateway_requests_total{model="m",protocol="grpc",reason="deadline_unmeetable"} 1
nereid_gateway_requests_total{model="m",protocol="grpc",reason="execution_failed"} 1
nereid_gateway_requests_total{model="m",protocol="grpc",reason="ok"} 3
nereid_gateway_requests_total{model="m",protocol="grpc",reason="queue_full"} 1
# HELP nereid_gateway_statistics_missing_total Pools whose models a reply with statistics lacked, since the pool's scheduler did not answer.
# TYPE nereid_gateway_statistics_missing_total counter
nereid_gateway_statistics_missing_total 1
`
	if err := testutil.GatherAndCompare(e.registry, strings.NewReader(want),
		"nereid_gateway_deadlines_total", "nereid_gateway_errors_total", "nereid_gateway_requests_total", "nereid_gateway_statistics_missing_total"); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.GatherAndLint(e.registry); err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
	got, responses := make(map[string]float64), uint64(0) // seconds; responses sent
	families, err := e.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, series := range f.GetMetric() {
			if h := series.GetHistogram(); h != nil {
				labels := series.GetLabel()
				got[labels[len(labels)-1].GetValue()] = h.GetSampleSum()
				if labels[len(labels)-1].GetValue() == "response" {
					responses = h.GetSampleCount()
				}
			}
		}
	}
	for series, want := range map[string]float64{"grpc": 2.001000001, "infer": 2.001000001, "receive": 0} {
		if got[series] != want {
			t.Errorf("%s took %v s, want %v", series, got[series], want)
		}
	}
	if responses != 3 {
		t.Errorf("the times of %d responses, want 3", responses)
	}
}

func TestSeriesEndWithTheirModel(t *testing.T) {
	e := newEngine()
	series := func() int {
		n, err := testutil.GatherAndCount(e.registry, "nereid_gateway_requests_total", "nereid_gateway_deadlines_total")
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	e.infer(t, time.Second)
	e.scheduler.reason = errs.DeadlineQueue
	e.infer(t, time.Second)
	had := series()
	if e.metrics.Prune([]*core.Model{{Name: "other"}, {Name: "m"}}); had == 0 || series() != had {
		t.Errorf("%d series of a model that is there, of %d", series(), had)
	}
	if e.metrics.Prune([]*core.Model{{Name: "other"}}); series() != 0 {
		t.Errorf("%d series of a model that is gone", series())
	}
	if e.infer(t, time.Second); series() != had {
		t.Errorf("%d series when it is back, want %d", series(), had)
	}
}

func BenchmarkInfer(b *testing.B) {
	e := newEngine()
	b.ReportAllocs()
	for b.Loop() {
		e.infer(b, time.Second)
	}
}
