package stats

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/obs"
)

// stages is where the time of a version's requests goes, from their arrival at
// the scheduler to their answer.
type stages struct {
	// Of each request that succeeded: until its batch left the queue, and
	// from then until an instance took it up.
	queue, dispatch obs.Durations
	// Of each batch that ran.
	input, infer, output obs.Durations
}

func (s *stages) observe(done *infer.InstanceFree, requests []Served) {
	t := &done.Timing
	for i := range requests {
		if r := &requests[i]; r.Outcome == infer.Succeeded {
			s.queue.Observe(r.Dispatched.Sub(r.queued()))
			s.dispatch.Observe(t.Start.Sub(r.Dispatched))
		}
	}
	if done.Executions > 0 {
		s.input.Observe(t.Input())
		s.infer.Observe(t.Infer())
		s.output.Observe(t.Output())
	}
}

// own are the descriptions of Nereid's families that are read from the
// counters of a version.
type own struct {
	stages, inFlight, rows, slots *prometheus.Desc
}

func newOwn() own {
	describe := func(name, help string, more ...string) *prometheus.Desc {
		return prometheus.NewDesc("nereid_scheduler_"+name, help, append([]string{"model", "version"}, more...), nil)
	}
	return own{
		stages: describe("stage_seconds", "Time of a request in the queue and in dispatch, until an instance takes its batch up, "+
			"and of a batch in input (gathering), infer (the model) and output (handing over).", "stage"),
		inFlight: describe("in_flight_requests", "Requests that wait or run."),
		rows:     describe("batched_rows_total", "Rows of the batches that ran; divided by nereid_scheduler_batch_slots_total, how full batches are."),
		slots:    describe("batch_slots_total", "Rows that the batches that ran had room for: max_batch_size for each."),
	}
}

func (o *own) collect(k key, c *Counters, out chan<- prometheus.Metric) {
	l := k.labels()
	model, version := l["model"], l["version"]
	t := c.snapshot()
	out <- prometheus.MustNewConstMetric(o.inFlight, prometheus.GaugeValue, float64(c.pending.Load()+c.running.Load()), model, version)
	out <- prometheus.MustNewConstMetric(o.rows, prometheus.CounterValue, float64(t.rows), model, version)
	out <- prometheus.MustNewConstMetric(o.slots, prometheus.CounterValue, float64(t.slots), model, version)
	s := &c.stages
	for _, stage := range []struct {
		name  string
		times *obs.Durations
	}{{"queue", &s.queue}, {"dispatch", &s.dispatch}, {"input", &s.input}, {"infer", &s.infer}, {"output", &s.output}} {
		out <- stage.times.Metric(o.stages, model, version, stage.name)
	}
}
