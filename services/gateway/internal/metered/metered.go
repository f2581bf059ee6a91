// Package metered counts requests and errors as the clients of a front end see them.
package metered

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
)

// Metrics are the gateway's own metrics. It is a prometheus.Collector and safe for concurrent use.
type Metrics struct {
	requests  *prometheus.CounterVec
	deadlines *prometheus.CounterVec
	errors    *prometheus.CounterVec
	missing   prometheus.Counter
	elements  *prometheus.HistogramVec
	shadowed  *prometheus.CounterVec
	retries   *prometheus.CounterVec
	tenants   *prometheus.CounterVec
	costs     *prometheus.CounterVec
	named     names
	series    sync.Map     // of *tenantSeries, by tenantKey
	resolved  atomic.Int64 // number of cached series
	seconds   *prometheus.Desc
	stages    *prometheus.Desc

	mu        sync.Mutex
	protocols []*Protocol // guarded by mu
}

// New registers the metrics.
func New(registry prometheus.Registerer) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "nereid_gateway_" + name, Help: help}, labels)
	}
	m := &Metrics{
		requests: counter("requests_total", "Inference requests for known models by protocol and by the reason of their failure, which is ok where there is none.",
			"protocol", "model", "reason"),
		deadlines: counter("deadlines_total", "Inference requests with a client's deadline by outcome: met; late, completed after it; "+
			"unmeetable, refused on arrival; queue and compute, expired while queued and while executing; failed otherwise.",
			"model", "outcome"),
		errors: counter("errors_total", "Calls of any endpoint that returned an error, by its reason.", "protocol", "reason"),
		elements: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "nereid_gateway_request_elements", Help: "Elements of all inputs of inference requests: which sizes a model gets.",
			Buckets: prometheus.ExponentialBuckets(1, 8, sizes),
		}, []string{"model"}),
		shadowed: counter("policy_shadowed_total", "Calls that a policy in shadow mode would have refused.", "tenant", "reason"),
		retries:  counter("retries_total", "Retries of tenants by result: taken, or refused since there were too many.", "tenant", "result"),
		tenants: counter("tenant_requests_total", "Inference requests under a policy by tenant, cost class, band and outcome: good, in time and without an error; "+
			"late; or the reason of the refusal or failure. The tenants seen first have series of their own, and the others share one.",
			"tenant", "class", "band", "outcome"),
		costs: counter("tenant_cost_units_total", "Milliseconds of device time that requests of a tenant have used.", "tenant", "class", "band"),
		missing: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nereid_gateway_statistics_missing_total",
			Help: "Pools whose models a reply with statistics lacked, since the pool's scheduler did not answer.",
		}),
		seconds: prometheus.NewDesc("nereid_gateway_request_seconds",
			"Time from the arrival of an inference request to its response, without reading and writing the network.", []string{"protocol"}, nil),
		stages: prometheus.NewDesc("nereid_gateway_stage_seconds",
			"Time of an inference request in receive (reading, over HTTP, decoding and checking), infer (until the scheduler and the worker have completed it) "+
				"and response (encoding and, over HTTP, writing).", []string{"protocol", "stage"}, nil),
	}
	registry.MustRegister(m)
	return m
}

// Describe describes the metrics.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	m.requests.Describe(out)
	m.deadlines.Describe(out)
	m.errors.Describe(out)
	m.missing.Describe(out)
	m.elements.Describe(out)
	m.shadowed.Describe(out)
	m.retries.Describe(out)
	m.tenants.Describe(out)
	m.costs.Describe(out)
	out <- m.seconds
	out <- m.stages
}

// Collect sends all series.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	m.requests.Collect(out)
	m.deadlines.Collect(out)
	m.errors.Collect(out)
	m.missing.Collect(out)
	m.elements.Collect(out)
	m.shadowed.Collect(out)
	m.retries.Collect(out)
	m.tenants.Collect(out)
	m.costs.Collect(out)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.protocols {
		out <- p.whole.Metric(m.seconds, p.protocol)
		out <- p.receive.Metric(m.stages, p.protocol, "receive")
		out <- p.infer.Metric(m.stages, p.protocol, "infer")
		out <- p.response.Metric(m.stages, p.protocol, "response")
	}
}

// sizes is the number of buckets for request sizes, each eight times as large as the previous one.
const sizes = 10

// Protocol are the metrics of the inferences of one protocol. It is a [path.Meter].
type Protocol struct {
	metrics                         *Metrics
	protocol                        string
	whole, receive, infer, response obs.Durations
	// success caches the counters of requests without an error. The map is replaced, never modified.
	success atomic.Pointer[map[infer.ModelID]*success]
}

// success are the counters of a model.
type success struct {
	completed, met, late prometheus.Counter
	elements             prometheus.Observer
}

// Protocol returns the metrics of a protocol.
func (m *Metrics) Protocol(name string) *Protocol {
	p := &Protocol{metrics: m, protocol: name}
	p.success.Store(&map[infer.ModelID]*success{})
	m.mu.Lock()
	defer m.mu.Unlock()
	m.protocols = append(m.protocols, p)
	return p
}

// Prune removes the series of models that are not listed, which are no longer in the repository.
func (m *Metrics) Prune(models []*core.Model) {
	listed := make(map[infer.ModelID]bool, len(models))
	for _, model := range models {
		listed[model.ID()] = true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.protocols {
		present := *p.success.Load()
		kept := maps.Clone(present)
		for id := range present {
			if listed[id] {
				continue
			}
			delete(kept, id)
			m.requests.DeletePartialMatch(prometheus.Labels{"model": id.String()})
			m.deadlines.DeletePartialMatch(prometheus.Labels{"model": id.String()})
			m.elements.DeletePartialMatch(prometheus.Labels{"model": id.String()})
		}
		p.success.Store(&kept)
	}
}

// Ended counts one inference.
func (p *Protocol) Ended(o *path.Outcome) {
	if o.Model == (infer.ModelID{}) { // refused before its message was read
		p.metrics.tenant(o)
		p.failed("", o.Reason, o.Deadline)
		return
	}
	success := p.successOf(o.Model)
	p.receive.Observe(o.Started.Sub(o.Received))
	p.infer.Observe(o.Ended.Sub(o.Started))
	p.whole.Observe(o.Ended.Sub(o.Received))
	if o.Responses > 0 {
		p.response.Observe(o.Responding)
	}
	if o.Elements > 0 { // otherwise unknown, since the request is invalid
		success.elements.Observe(float64(o.Elements))
	}
	p.metrics.tenant(o)
	if o.Reason != "" {
		p.failed(o.Model.String(), o.Reason, o.Deadline)
		return
	}
	success.completed.Inc()
	switch {
	case o.Deadline == 0:
	case o.Ended <= o.Deadline:
		success.met.Inc()
	default:
		success.late.Inc()
	}
}

// Failed counts a call of any endpoint that returns an error.
func (p *Protocol) Failed(reason errs.Reason) {
	p.metrics.errors.WithLabelValues(p.protocol, string(reason)).Inc()
}

// StatisticsMissing counts a pool that is missing from a statistics reply.
func (m *Metrics) StatisticsMissing() { m.missing.Inc() }

func (p *Protocol) failed(model string, reason errs.Reason, deadline mono.Time) {
	p.metrics.requests.WithLabelValues(p.protocol, model, string(reason)).Inc()
	if deadline != 0 {
		p.metrics.deadlines.WithLabelValues(model, outcomeOf(reason)).Inc()
	}
}

// outcomeOf returns the deadline outcome of a failed request.
func outcomeOf(reason errs.Reason) string {
	switch reason {
	case errs.DeadlineUnmeetable, errs.DeadlineTooShort:
		return "unmeetable"
	case errs.DeadlineQueue:
		return "queue"
	case errs.DeadlineCompute:
		return "compute"
	}
	return "failed"
}

func (p *Protocol) successOf(id infer.ModelID) *success {
	if g := (*p.success.Load())[id]; g != nil {
		return g
	}
	p.metrics.mu.Lock()
	defer p.metrics.mu.Unlock()
	if g := (*p.success.Load())[id]; g != nil {
		return g
	}
	model := id.String()
	g := &success{
		completed: p.metrics.requests.WithLabelValues(p.protocol, model, "ok"),
		met:       p.metrics.deadlines.WithLabelValues(model, "met"),
		late:      p.metrics.deadlines.WithLabelValues(model, "late"),
		elements:  p.metrics.elements.WithLabelValues(model),
	}
	all := maps.Clone(*p.success.Load())
	all[id] = g
	p.success.Store(&all)
	return g
}
