package redis

import "github.com/prometheus/client_golang/prometheus"

type counts struct {
	lookups    struct{ found, absent, failed, skipped, canceled prometheus.Counter }
	insertions struct{ kept, failed, skipped prometheus.Counter }
	families   []prometheus.Collector
}

func newCounts() (c counts) {
	family := func(name, help string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "nereid_gateway_redis_" + name + "_total", Help: help}, []string{"result"})
		c.families = append(c.families, v)
		return v
	}
	lookups := family("lookups", "Responses looked for in the response cache's Redis. Those skipped are of the time while it was away.")
	c.lookups.found, c.lookups.absent = lookups.WithLabelValues("found"), lookups.WithLabelValues("absent")
	c.lookups.failed, c.lookups.skipped = lookups.WithLabelValues("failed"), lookups.WithLabelValues("skipped")
	c.lookups.canceled = lookups.WithLabelValues("canceled")
	insertions := family("insertions", "Responses for the response cache's Redis. Those skipped found it away, or too many on their way to it.")
	c.insertions.kept, c.insertions.failed = insertions.WithLabelValues("kept"), insertions.WithLabelValues("failed")
	c.insertions.skipped = insertions.WithLabelValues("skipped")
	return c
}

// Collectors returns the metrics of a response cache's Redis.
func (v *Values) Collectors() []prometheus.Collector {
	return append(v.counts.families, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "nereid_gateway_redis_up", Help: "1 while the response cache's Redis answers, 0 while it is away.",
	}, func() float64 {
		if v.away.Load() {
			return 0
		}
		return 1
	}))
}
