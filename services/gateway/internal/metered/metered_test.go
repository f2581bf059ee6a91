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
	"github.com/nereid-serving/nereid/services/gateway/internal/pending"
)

// scheduler answers at once, when so much time has passed, with an error of a
// reason if it has one. It is the clock as well.
type scheduler struct {
	now    mono.Time
	table  *pending.Table
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

type engine struct {
	*metered.Engine
	metrics   *metered.Metrics
	scheduler *scheduler
	registry  *prometheus.Registry
	version   *core.Version
}

func newEngine() *engine {
	s := &scheduler{now: 1, table: pending.New(1)}
	e := &engine{scheduler: s, registry: prometheus.NewRegistry(), version: &core.Version{
		Ref: infer.ModelRef{Name: "m", Version: 1}, Config: &modelconfig.Config{Name: "m"}, State: infer.Ready,
	}}
	g := core.New(core.ServerInfo{}, core.Deps{Dispatcher: s, Pending: s.table, Clock: s, Pool: tensor.NewPool(0)})
	g.Update(core.NewSnapshot(1, true, []*core.Model{{Name: "m", Versions: []*core.Version{e.version}}}))
	e.metrics = metered.New(e.registry, s)
	e.Engine = e.metrics.Engine(g, "grpc")
	return e
}

// infer sends a request that has that long to be answered; 0 is for ever.
func (e *engine) infer(t testing.TB, limit time.Duration) {
	t.Helper()
	r := e.NewRequest(e.version)
	if limit > 0 {
		r.Deadline = e.scheduler.now.Add(limit)
	}
	response, _, err := e.Infer(t.Context(), e.version, r)
	if errs.Of(err) != e.scheduler.reason && err != nil {
		t.Fatal(err)
	}
	if err == nil {
		response.Release()
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
	e.Answered(3 * time.Microsecond)
	e.Failed(errs.ModelNotFound)
	want := `
# HELP nereid_gateway_deadlines_total Inference requests with a deadline of their client by what came of it: met; late, answered after it; unmeetable, refused on arrival; queue and compute, passed while waiting and running; failed otherwise.
# TYPE nereid_gateway_deadlines_total counter
nereid_gateway_deadlines_total{model="m",outcome="compute"} 1
nereid_gateway_deadlines_total{model="m",outcome="failed"} 1
nereid_gateway_deadlines_total{model="m",outcome="late"} 1
nereid_gateway_deadlines_total{model="m",outcome="met"} 1
nereid_gateway_deadlines_total{model="m",outcome="queue"} 1
nereid_gateway_deadlines_total{model="m",outcome="unmeetable"} 1
# HELP nereid_gateway_errors_total Calls of any endpoint that were answered with an error, by its reason.
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
`
	if err := testutil.GatherAndCompare(e.registry, strings.NewReader(want),
		"nereid_gateway_deadlines_total", "nereid_gateway_errors_total", "nereid_gateway_requests_total"); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.GatherAndLint(e.registry); err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
	got := make(map[string]float64) // seconds
	families, err := e.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, series := range f.GetMetric() {
			if h := series.GetHistogram(); h != nil {
				labels := series.GetLabel()
				got[labels[len(labels)-1].GetValue()] = h.GetSampleSum()
			}
		}
	}
	for series, want := range map[string]float64{"grpc": 2.001000001, "infer": 2.001000001, "receive": 0, "answer": 3e-6} {
		if got[series] != want {
			t.Errorf("%s took %v s, want %v", series, got[series], want)
		}
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
	if e.metrics.Keep([]*core.Model{{Name: "other"}, {Name: "m"}}); had == 0 || series() != had {
		t.Errorf("%d series of a model that is there, of %d", series(), had)
	}
	if e.metrics.Keep([]*core.Model{{Name: "other"}}); series() != 0 {
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
