package dispatch

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nereid-serving/nereid/services/scheduler/core"
)

// Resources exports the rate limiter's resources and the requests that wait for them. It queries the core on
// collection.
type Resources struct {
	loop                 *Loop
	waiting, used, units *prometheus.Desc
}

// Resources returns the collector of the loop's rate limiter.
func (l *Loop) Resources() *Resources {
	of := []string{"resource", "device"}
	return &Resources{
		loop: l,
		waiting: prometheus.NewDesc("nereid_scheduler_resource_waiting_requests",
			"Requests of models whose turn has come and whose rate-limiter resources are not free.", []string{"model", "version"}, nil),
		used: prometheus.NewDesc("nereid_scheduler_resource_used_units",
			"How much executions hold of a rate-limiter resource on the devices of that number, or of the pool's where the device is global.", of, nil),
		units: prometheus.NewDesc("nereid_scheduler_resource_units", "How much there is of it.", of, nil),
	}
}

// Describe sends the descriptors.
func (r *Resources) Describe(out chan<- *prometheus.Desc) {
	out <- r.waiting
	out <- r.used
	out <- r.units
}

// Collect sends the waiting requests of each model version, and each resource.
func (r *Resources) Collect(out chan<- prometheus.Metric) {
	type version struct{ model, number string }
	waiting := make(map[version]int)
	for ref, q := range r.loop.queues() {
		waiting[version{ref.ID().String(), strconv.FormatInt(ref.Version, 10)}] += q.ForResources // of all its contents
	}
	for v, n := range waiting {
		out <- prometheus.MustNewConstMetric(r.waiting, prometheus.GaugeValue, float64(n), v.model, v.number)
	}
	for _, u := range look(r.loop, (*core.Core).Resources) {
		device := "global"
		if u.Device >= 0 {
			device = strconv.Itoa(u.Device)
		}
		out <- prometheus.MustNewConstMetric(r.used, prometheus.GaugeValue, float64(u.Used), u.Name, device)
		out <- prometheus.MustNewConstMetric(r.units, prometheus.GaugeValue, float64(u.Units), u.Name, device)
	}
}
