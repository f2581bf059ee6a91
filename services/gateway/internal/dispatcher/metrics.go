package dispatcher

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nereid-serving/nereid/services/gateway/internal/requests"
)

// metrics show the effects of a failover on the gateway's requests.
type metrics struct {
	epoch         prometheus.Gauge
	resubmissions prometheus.Counter
}

func newMetrics(r prometheus.Registerer, pool *requests.Pool) metrics {
	m := metrics{
		epoch: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "nereid_gateway_scheduler_epoch", Help: "Epoch of the scheduler that the gateway is connected to; 0 while there is none.",
		}),
		resubmissions: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nereid_gateway_resubmissions_total", Help: "Requests that were submitted again, since the session with their scheduler had ended.",
		}),
	}
	r.MustRegister(m.epoch, m.resubmissions, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "nereid_gateway_waiting_requests", Help: "Requests that wait for a scheduler to hold their pool.",
	}, func() float64 { return float64(pool.Waiting()) }))
	return m
}
