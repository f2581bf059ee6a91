package scheduler

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics report the scheduler's leadership of the pool.
type metrics struct {
	epoch     prometheus.Gauge
	takeovers prometheus.Counter
	deaths    prometheus.Counter
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		epoch: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "nereid_scheduler_epoch", Help: "Epoch under which the scheduler holds its pool; 0 while another does.",
		}),
		takeovers: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nereid_scheduler_takeovers_total", Help: "How often the scheduler took the pool, the first time included.",
		}),
		deaths: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nereid_scheduler_lost_workers_total", Help: "Workers whose lease had ended and that could not be reached.",
		}),
	}
	r.MustRegister(m.epoch, m.takeovers, m.deaths)
	return m
}

// began records the epoch of a new leadership, or its end with 0.
func (m *metrics) began(epoch uint64) {
	m.epoch.Set(float64(epoch))
	if epoch != 0 {
		m.takeovers.Inc()
	}
}
