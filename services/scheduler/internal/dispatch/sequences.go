package dispatch

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nereid-serving/nereid/services/scheduler/core"
)

// Sequences exports how many sequences each model version has, and how they end. It queries the core on collection,
// so requests pay nothing for it.
type Sequences struct {
	loop                *Loop
	live, backlog, ends *prometheus.Desc
}

// Sequences returns the collector of the loop's sequences.
func (l *Loop) Sequences() *Sequences {
	labels := []string{"model", "version"}
	return &Sequences{
		loop: l,
		live: prometheus.NewDesc("nereid_scheduler_live_sequences",
			"Sequences that have a slot of an instance.", labels, nil),
		backlog: prometheus.NewDesc("nereid_scheduler_backlog_sequences",
			"Sequences that wait for a slot of an instance.", labels, nil),
		ends: prometheus.NewDesc("nereid_scheduler_sequence_ends_total",
			"Sequences that have ended, by reason: ended by their last request, idle, canceled, timeout in the backlog, or lost with a request or their state.",
			append(labels, "reason"), nil),
	}
}

// Describe sends the descriptors.
func (s *Sequences) Describe(out chan<- *prometheus.Desc) {
	out <- s.live
	out <- s.backlog
	out <- s.ends
}

// Collect sends the series of each model version that batches sequences.
func (s *Sequences) Collect(out chan<- prometheus.Metric) {
	type version struct{ model, number string }
	all := make(map[version]core.Sequences)
	for ref, q := range s.loop.queues() {
		if q.Sequences == nil {
			continue
		}
		v, n := version{ref.ID().String(), strconv.FormatInt(ref.Version, 10)}, *q.Sequences
		sum := all[v] // of all its contents
		sum.Live, sum.Backlog = sum.Live+n.Live, sum.Backlog+n.Backlog
		sum.Ended, sum.Idle, sum.StateLost = sum.Ended+n.Ended, sum.Idle+n.Idle, sum.StateLost+n.StateLost
		sum.Canceled, sum.TimedOut = sum.Canceled+n.Canceled, sum.TimedOut+n.TimedOut
		all[v] = sum
	}
	for v, n := range all {
		out <- prometheus.MustNewConstMetric(s.live, prometheus.GaugeValue, float64(n.Live), v.model, v.number)
		out <- prometheus.MustNewConstMetric(s.backlog, prometheus.GaugeValue, float64(n.Backlog), v.model, v.number)
		for reason, count := range map[string]uint64{
			"ended": n.Ended, "idle": n.Idle, "lost": n.StateLost, "canceled": n.Canceled, "timeout": n.TimedOut,
		} {
			out <- prometheus.MustNewConstMetric(s.ends, prometheus.CounterValue, float64(count), v.model, v.number, reason)
		}
	}
}
