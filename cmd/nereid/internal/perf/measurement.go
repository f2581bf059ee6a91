package perf

import (
	"encoding/json"
	"fmt"
	"math"
	"runtime"
	"time"
)

// Measurement is what became of one load. Latencies and rates carry their
// intervals.
type Measurement struct {
	Load Load `json:"load"`
	// Seconds is the length of the measured part.
	Seconds   float64   `json:"seconds"`
	All       Group     `json:"all"`
	Groups    []Group   `json:"groups,omitempty"`
	Generator Generator `json:"generator"`
	Server    *Server   `json:"server,omitempty"`
	Windows   []Window  `json:"windows"`
	// Answers compares the responses with those of the recording, where that was asked for.
	Answers *Answers `json:"answers,omitempty"`
	// Filled requests were recorded without contents, and sent with zeros.
	Filled int `json:"filled,omitempty"`
}

// Group is what became of some of the requests.
type Group struct {
	Model  string `json:"model,omitempty"`
	Caller string `json:"caller,omitempty"`

	Answered int64 `json:"answered"`
	Failed   int64 `json:"failed"`
	// Errors are the kinds of failures: the server's reason, its status, or what
	// happened to the connection; Examples has a text of each.
	Errors   map[string]int64  `json:"errors,omitempty"`
	Examples map[string]string `json:"examples,omitempty"`
	// Rate is answered requests per second.
	Rate Interval `json:"rate"`
	// Responses per second differ from requests where streams have several.
	Responses Interval `json:"responses"`
	Latency   Latency  `json:"latency_us"`
	// First is the time to the first response, and Between that from one response to
	// the next; both are there for streams with several responses.
	First   *Latency `json:"first_response_us,omitempty"`
	Between *Latency `json:"between_responses_us,omitempty"`
}

// Latency is a distribution, in microseconds.
type Latency struct {
	Mean Interval `json:"mean"`
	P50  Interval `json:"p50"`
	P90  Interval `json:"p90"`
	P95  Interval `json:"p95"`
	P99  Interval `json:"p99"`
	P999 Interval `json:"p999"`
	Max  float64  `json:"max"`
	// Curve has the latency at Curve's quantiles, for a plot.
	Curve []Point `json:"curve,omitempty"`
}

// Point is one of a curve.
type Point struct {
	X float64 `json:"x"`
	Y float64 `json:"y"`
}

// Window is a part of the measured time.
type Window struct {
	At       float64 `json:"at_seconds"`
	Answered int64   `json:"answered"`
	Failed   int64   `json:"failed"`
	P50      float64 `json:"p50_us"`
	P99      float64 `json:"p99_us"`
}

// Generator is what the load cost this process, and how well it kept to its times.
type Generator struct {
	CPU   time.Duration `json:"cpu_ns"`
	Wall  time.Duration `json:"wall_ns"`
	Cores int           `json:"cores"`
	// CPUPerRequest is in microseconds.
	CPUPerRequest float64 `json:"cpu_us_per_request"`
	// LagP99 is the 99 % quantile of how late requests were sent, in microseconds, and
	// Late the share of those sent more than a millisecond too late.
	LagP99 float64 `json:"lag_p99_us"`
	Late   float64 `json:"late"`
	// Unsent requests were due when too many were in flight.
	Unsent int64 `json:"unsent"`
	// Bottleneck says why the figures are this process's and not the server's; it is
	// empty where they are the server's.
	Bottleneck string `json:"bottleneck,omitempty"`
}

// curveAt are the quantiles of a plotted distribution.
func curveAt() []float64 {
	return []float64{0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999}
}

// latency summarizes durations; nil where there are none.
func (s *spread) latency() *Latency {
	if s.count() == 0 {
		return nil
	}
	l := &Latency{
		Mean: s.mean(), P50: s.quantile(0.5), P90: s.quantile(0.9), P95: s.quantile(0.95), P99: s.quantile(0.99), P999: s.quantile(0.999),
		Max: float64(s.all().Max()),
	}
	for _, q := range curveAt() {
		l.Curve = append(l.Curve, Point{q, float64(s.all().ValueAtQuantile(100 * q))})
	}
	return l
}

// measurement summarizes what was recorded. Only whole batches give rates, except
// where the run ended within the first.
func (r *run) measurement() *Measurement {
	r.record.mu.Lock()
	defer r.record.mu.Unlock()
	m := &Measurement{Load: r.load, Seconds: r.elapsed.Seconds(), Server: r.server}
	width := r.length.Seconds() / batches
	whole := int(m.Seconds/width + 1e-6)
	for i := range r.record.groups {
		from := &r.record.groups[i]
		summary := from.summary(whole, width, m.Seconds)
		if i == len(r.classes) {
			m.All = summary
			m.Windows = from.windows(max(whole, 1), width)
			continue
		}
		summary.Model, summary.Caller = r.classes[i].Model, r.classes[i].Caller
		if len(r.classes) > 1 {
			m.Groups = append(m.Groups, summary)
		}
	}
	m.Generator = r.generator(&m.All)
	if r.playing != nil {
		m.Answers, m.Filled = r.playing.answers, r.replay.redacted
	}
	return m
}

func (g *group) summary(whole int, width, elapsed float64) Group {
	s := Group{Errors: g.errors, Examples: g.example}
	var rates, responses []float64
	var sent int64
	for i := range batches {
		s.Answered += g.answered[i]
		s.Failed += g.failed[i]
		sent += g.responses[i]
		if i < whole {
			rates = append(rates, float64(g.answered[i])/width)
			responses = append(responses, float64(g.responses[i])/width)
		}
	}
	s.Rate, s.Responses = meanOf(rates), meanOf(responses)
	if whole == 0 && elapsed > 0 {
		s.Rate = around(float64(s.Answered)/elapsed, math.NaN())
		s.Responses = around(float64(sent)/elapsed, math.NaN())
	}
	if l := g.latency.latency(); l != nil {
		s.Latency = *l
	}
	if s.Between = g.between.latency(); s.Between != nil {
		s.First = g.first.latency()
	}
	return s
}

func (g *group) windows(count int, width float64) []Window {
	list := make([]Window, count)
	for i := range list {
		w := &list[i]
		w.At, w.Answered, w.Failed = (float64(i)+0.5)*width, g.answered[i], g.failed[i]
		if h := g.latency.batches[i]; h != nil {
			w.P50, w.P99 = float64(h.ValueAtQuantile(50)), float64(h.ValueAtQuantile(99))
		}
	}
	return list
}

// generator judges whether this process kept up.
func (r *run) generator(all *Group) Generator {
	g := Generator{CPU: r.cpu, Wall: r.wall, Cores: runtime.GOMAXPROCS(0)}
	if n := all.Answered + all.Failed; n > 0 {
		g.CPUPerRequest = float64(g.CPU.Microseconds()) / float64(n) * float64(r.length) / float64(max(g.Wall, r.length))
		g.Late = float64(r.record.late) / float64(n)
	}
	g.LagP99 = float64(r.record.lag.all().ValueAtQuantile(99))
	g.Unsent = r.record.unsent
	busy := g.CPU.Seconds() / (g.Wall.Seconds() * float64(g.Cores))
	switch {
	case g.Unsent > 0:
		g.Bottleneck = fmt.Sprintf("%d requests were due and not sent: %d were in flight; raise --max-in-flight, or the server is overloaded", g.Unsent, r.options.MaxInFlight)
	case r.load.Concurrency == 0 && g.LagP99 > max(1000, all.Latency.P50.Value/10):
		g.Bottleneck = fmt.Sprintf("the generator sent requests late, 1 %% of them by more than %v: its processors are busy", time.Duration(g.LagP99)*time.Microsecond)
	case busy > 0.8:
		g.Bottleneck = fmt.Sprintf("the generator used %.0f %% of its %d processors: run it on another machine, or on several", 100*busy, g.Cores)
	}
	return g
}

// jsonInterval is an interval in JSON, where bounds that are unknown are left out.
type jsonInterval struct {
	Value *float64 `json:"value"`
	Low   *float64 `json:"low,omitempty"`
	High  *float64 `json:"high,omitempty"`
}

// MarshalJSON implements json.Marshaler.
func (i Interval) MarshalJSON() ([]byte, error) {
	finite := func(f float64) *float64 {
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return nil
		}
		return &f
	}
	return json.Marshal(jsonInterval{finite(i.Value), finite(i.Low), finite(i.High)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (i *Interval) UnmarshalJSON(text []byte) error {
	var j jsonInterval
	if err := json.Unmarshal(text, &j); err != nil {
		return err
	}
	*i = Interval{math.NaN(), math.NaN(), math.NaN()}
	for _, f := range []struct {
		from *float64
		to   *float64
	}{{j.Value, &i.Value}, {j.Low, &i.Low}, {j.High, &i.High}} {
		if f.from != nil {
			*f.to = *f.from
		}
	}
	return nil
}
