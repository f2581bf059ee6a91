// Package metered counts what a front end's callers see.
package metered

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// Metrics are the gateway's own families. It is a prometheus.Collector and
// safe for concurrent use.
type Metrics struct {
	clock     mono.Clock
	requests  *prometheus.CounterVec
	deadlines *prometheus.CounterVec
	errors    *prometheus.CounterVec
	seconds   *prometheus.Desc
	stages    *prometheus.Desc

	mu      sync.Mutex
	engines []*Engine // guarded by mu
}

// New registers the families.
func New(registry prometheus.Registerer, clock mono.Clock) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "nereid_gateway_" + name, Help: help}, labels)
	}
	m := &Metrics{
		clock: clock,
		requests: counter("requests_total", "Inference requests for known models by protocol and by the reason of their failure, which is ok where there is none.",
			"protocol", "model", "reason"),
		deadlines: counter("deadlines_total", "Inference requests with a deadline of their client by what came of it: met; late, answered after it; "+
			"unmeetable, refused on arrival; queue and compute, passed while waiting and running; failed otherwise.",
			"model", "outcome"),
		errors: counter("errors_total", "Calls of any endpoint that were answered with an error, by its reason.", "protocol", "reason"),
		seconds: prometheus.NewDesc("nereid_gateway_request_seconds",
			"Time from the arrival of an inference request to its answer, without reading and writing the network.", []string{"protocol"}, nil),
		stages: prometheus.NewDesc("nereid_gateway_stage_seconds",
			"Time of an inference request in receive (reading, over HTTP, decoding and checking), infer (until the scheduler and the worker have answered) "+
				"and answer (encoding and, over HTTP, writing).", []string{"protocol", "stage"}, nil),
	}
	registry.MustRegister(m)
	return m
}

// Describe describes the families.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	m.requests.Describe(out)
	m.deadlines.Describe(out)
	m.errors.Describe(out)
	out <- m.seconds
	out <- m.stages
}

// Collect sends all series.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	m.requests.Collect(out)
	m.deadlines.Collect(out)
	m.errors.Collect(out)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.engines {
		out <- e.whole.Metric(m.seconds, e.protocol)
		out <- e.receive.Metric(m.stages, e.protocol, "receive")
		out <- e.infer.Metric(m.stages, e.protocol, "infer")
		out <- e.answer.Metric(m.stages, e.protocol, "answer")
	}
}

// Engine is a gateway whose inferences are counted under one protocol.
type Engine struct {
	*core.Gateway
	metrics                       *Metrics
	protocol                      string
	whole, receive, infer, answer obs.Durations
	// good are the counters of answers without an error, so that a request
	// need not look its labels up. The map is replaced, not changed.
	good atomic.Pointer[map[infer.ModelID]*good]
}

// good are a model's.
type good struct{ answered, met, late prometheus.Counter }

// Engine meters g for a protocol.
func (m *Metrics) Engine(g *core.Gateway, protocol string) *Engine {
	e := &Engine{Gateway: g, metrics: m, protocol: protocol}
	e.good.Store(&map[infer.ModelID]*good{})
	m.mu.Lock()
	defer m.mu.Unlock()
	m.engines = append(m.engines, e)
	return e
}

// Keep ends the series of all models but those that are listed: what has left
// the repository. Series of others go on, whether they are loaded or not.
func (m *Metrics) Keep(models []*core.Model) {
	listed := make(map[infer.ModelID]bool, len(models))
	for _, model := range models {
		listed[model.ID()] = true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.engines {
		present := *e.good.Load()
		kept := maps.Clone(present)
		for id := range present {
			if listed[id] {
				continue
			}
			delete(kept, id)
			m.requests.DeletePartialMatch(prometheus.Labels{"model": id.String()})
			m.deadlines.DeletePartialMatch(prometheus.Labels{"model": id.String()})
		}
		e.good.Store(&kept)
	}
}

// Infer counts one inference.
func (e *Engine) Infer(ctx context.Context, v *core.Version, r *infer.Request) (*infer.Response, *core.Version, error) {
	received, deadline, begun := r.Received, r.Deadline, e.metrics.clock.Now()
	good := e.goodOf(v.Ref.ID())
	response, served, err := e.Gateway.Infer(ctx, v, r)
	ended := e.metrics.clock.Now()
	e.receive.Observe(begun.Sub(received))
	e.infer.Observe(ended.Sub(begun))
	e.whole.Observe(ended.Sub(received))
	if err != nil {
		e.failed(v.Ref.ID().String(), errs.Of(err), deadline)
		return nil, served, err
	}
	good.answered.Inc()
	switch {
	case deadline == 0:
	case ended <= deadline:
		good.met.Inc()
	default:
		good.late.Inc()
	}
	return response, served, nil
}

// Answered counts how long the answer of an inference took to encode and
// write.
func (e *Engine) Answered(took time.Duration) { e.answer.Observe(took) }

// Failed counts a call, of whatever endpoint, that is answered with an error.
func (e *Engine) Failed(reason errs.Reason) {
	e.metrics.errors.WithLabelValues(e.protocol, string(reason)).Inc()
}

func (e *Engine) failed(model string, reason errs.Reason, deadline mono.Time) {
	e.metrics.requests.WithLabelValues(e.protocol, model, string(reason)).Inc()
	if deadline != 0 {
		e.metrics.deadlines.WithLabelValues(model, outcomeOf(reason)).Inc()
	}
}

// outcomeOf is what came of the deadline of a request that failed.
func outcomeOf(reason errs.Reason) string {
	switch reason {
	case errs.DeadlineUnmeetable:
		return "unmeetable"
	case errs.DeadlineQueue:
		return "queue"
	case errs.DeadlineCompute:
		return "compute"
	}
	return "failed"
}

func (e *Engine) goodOf(id infer.ModelID) *good {
	if g := (*e.good.Load())[id]; g != nil {
		return g
	}
	e.metrics.mu.Lock()
	defer e.metrics.mu.Unlock()
	if g := (*e.good.Load())[id]; g != nil {
		return g
	}
	model := id.String()
	g := &good{
		answered: e.metrics.requests.WithLabelValues(e.protocol, model, "ok"),
		met:      e.metrics.deadlines.WithLabelValues(model, "met"),
		late:     e.metrics.deadlines.WithLabelValues(model, "late"),
	}
	all := maps.Clone(*e.good.Load())
	all[id] = g
	e.good.Store(&all)
	return g
}
