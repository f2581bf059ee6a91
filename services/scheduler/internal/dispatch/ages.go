package dispatch

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nereid-serving/nereid/libs/mono"
)

// Ages exports how long the oldest request of each model version has waited. It queries the core on collection, so
// requests pay nothing for it.
type Ages struct {
	loop *Loop
	age  *prometheus.Desc
}

// Ages returns the collector of the loop's queue ages.
func (l *Loop) Ages() *Ages {
	return &Ages{loop: l, age: prometheus.NewDesc("nereid_scheduler_queue_age_seconds",
		"How long the oldest of the requests that wait has waited; 0 if none does.", []string{"model", "version"}, nil)}
}

// Describe sends the descriptor.
func (a *Ages) Describe(out chan<- *prometheus.Desc) { out <- a.age }

// Collect sends the age of each model version's queue.
func (a *Ages) Collect(out chan<- prometheus.Metric) {
	type version struct{ model, number string }
	oldest := make(map[version]mono.Time)
	for ref, q := range a.loop.queues() {
		v := version{ref.ID().String(), strconv.FormatInt(ref.Version, 10)}
		oldest[v] = mono.Earliest(oldest[v], q.Oldest) // of all its contents
	}
	now := a.loop.clock.Now()
	for v, since := range oldest {
		age := 0.0
		if since != 0 {
			age = max(now.Sub(since), 0).Seconds()
		}
		out <- prometheus.MustNewConstMetric(a.age, prometheus.GaugeValue, age, v.model, v.number)
	}
}
