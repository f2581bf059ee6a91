// Package metered counts what a front end's callers see.
package metered

import (
	"context"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// Metrics are the gateway's own families.
type Metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	clock    mono.Clock
}

// New registers the families.
func New(registry prometheus.Registerer, clock mono.Clock) *Metrics {
	m := &Metrics{
		clock: clock,
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nereid_gateway_requests_total",
			Help: "Inference requests for known models by protocol and by the reason of their failure, which is ok where there is none.",
		}, []string{"protocol", "model", "reason"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "nereid_gateway_request_seconds",
			Help:    "Time from the arrival of an inference request to its answer, without reading and writing the network.",
			Buckets: prometheus.ExponentialBuckets(64e-6, 4, 10), NativeHistogramBucketFactor: 1.1,
		}, []string{"protocol"}),
	}
	registry.MustRegister(m.requests, m.seconds)
	return m
}

// Engine is a gateway whose inferences are counted under one protocol.
type Engine struct {
	*core.Gateway
	metrics  *Metrics
	protocol string
	seconds  prometheus.Observer
	// answered are the counters of the answers without an error, so that a
	// request need not look its labels up.
	answered sync.Map // of model name to prometheus.Counter
}

// Engine meters g for a protocol.
func (m *Metrics) Engine(g *core.Gateway, protocol string) *Engine {
	return &Engine{Gateway: g, metrics: m, protocol: protocol, seconds: m.seconds.WithLabelValues(protocol)}
}

// Infer counts one inference.
func (e *Engine) Infer(ctx context.Context, v *core.Version, r *infer.Request) (*infer.Response, *core.Version, error) {
	received, model := r.Received, v.Ref.Name
	response, served, err := e.Gateway.Infer(ctx, v, r)
	e.seconds.Observe(e.metrics.clock.Now().Sub(received).Seconds())
	e.counter(model, err).Inc()
	return response, served, err
}

func (e *Engine) counter(model string, err error) prometheus.Counter {
	if err != nil {
		return e.metrics.requests.WithLabelValues(e.protocol, model, string(errs.Of(err)))
	}
	if c, ok := e.answered.Load(model); ok {
		return c.(prometheus.Counter)
	}
	c := e.metrics.requests.WithLabelValues(e.protocol, model, "ok")
	e.answered.Store(model, c)
	return c
}
