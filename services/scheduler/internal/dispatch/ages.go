package dispatch

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/scheduler/internal/core"
)

// Ages shows how long the oldest request of each model version has waited. It
// asks the core when it is collected, so that requests pay nothing for it.
type Ages struct {
	loop *Loop
	age  *prometheus.Desc
}

// Ages makes the collector of the loop's queues.
func (l *Loop) Ages() *Ages {
	return &Ages{loop: l, age: prometheus.NewDesc("nereid_scheduler_queue_age_seconds",
		"How long the oldest of the requests that wait has waited; 0 if none does.", []string{"model", "version"}, nil)}
}

// Describe describes the family.
func (a *Ages) Describe(out chan<- *prometheus.Desc) { out <- a.age }

// Collect sends the age of each model version's queue.
func (a *Ages) Collect(out chan<- prometheus.Metric) {
	type version struct{ model, number string }
	oldest := make(map[version]mono.Time)
	for ref, since := range a.loop.oldest() {
		v := version{ref.ID().String(), strconv.FormatInt(ref.Version, 10)}
		oldest[v] = mono.Earliest(oldest[v], since) // of all its contents
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

// oldest is what the core says of its queues; nil before Run, since nobody
// works on the inbox then.
func (l *Loop) oldest() map[infer.ModelRef]mono.Time {
	l.mu.Lock()
	running := l.running
	l.mu.Unlock()
	if !running {
		return nil
	}
	answer := make(chan map[infer.ModelRef]mono.Time, 1)
	l.post(message{look: func(c *core.Core) { answer <- c.Oldest() }})
	return <-answer
}
