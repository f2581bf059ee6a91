package perf

import (
	"cmp"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Report is everything that one command measured.
type Report struct {
	// Command is the command line, and Time when it started.
	Command string    `json:"command"`
	Time    time.Time `json:"time"`
	Target  string    `json:"target"`
	// Runs are the loads of a sweep.
	Runs       []*Measurement `json:"runs,omitempty"`
	Saturation *Saturation    `json:"saturation,omitempty"`
}

// WriteJSON writes the report in the form that [ReadReport] reads.
func (r *Report) WriteJSON(w io.Writer) error {
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	return out.Encode(r)
}

// ReadReport reads a report.
func ReadReport(in io.Reader) (*Report, error) {
	r := new(Report)
	if err := json.NewDecoder(in).Decode(r); err != nil {
		return nil, errs.Wrap(errs.ConfigInvalid, err, "this is no report of nereid perf in JSON: %v", err)
	}
	return r, nil
}

// String names a load as tables have it.
func (l Load) String() string {
	if l.Concurrency > 0 {
		return fmt.Sprintf("%d at a time", l.Concurrency)
	}
	if l.Trace != "" {
		return fmt.Sprintf("%s at %sx", l.Trace, short(l.Speed))
	}
	return fmt.Sprintf("%s/s %s", short(l.Rate), l.Arrivals)
}

// short writes a number with at least three significant digits.
func short(f float64) string {
	switch a := math.Abs(f); {
	case math.IsNaN(f):
		return "-"
	case a >= 100:
		return strconv.FormatFloat(f, 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(f, 'f', 1, 64)
	}
	return strconv.FormatFloat(f, 'f', 2, 64)
}

// text writes an estimate with half the width of its interval.
func (i Interval) text(write func(float64) string) string {
	if !i.known() {
		return write(i.Value)
	}
	return write(i.Value) + " ±" + write((i.High-i.Low)/2)
}

// micros writes microseconds in the unit that suits them.
func micros(f float64) string {
	switch a := math.Abs(f); {
	case math.IsNaN(f):
		return "-"
	case a >= 1e6:
		return short(f/1e6) + "s"
	case a >= 1e3:
		return short(f/1e3) + "ms"
	}
	return strconv.FormatFloat(f, 'f', 0, 64) + "µs"
}

// Print writes tables for people.
func (r *Report) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	runs := r.Runs
	if s := r.Saturation; s != nil {
		s.print(t)
		runs = []*Measurement{s.At}
	}
	fmt.Fprintln(t, "LOAD\tREQUESTS/S\tP50\tP90\tP99\tP99.9\tMEAN\tFAILED")
	for _, m := range runs {
		m.All.print(t, m.Load.String(), m.All.Failed+m.All.Answered)
		for i := range m.Groups {
			g := &m.Groups[i]
			g.print(t, "  "+strings.TrimSpace(g.Model+" "+g.Caller), g.Failed+g.Answered)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, m := range runs {
		m.notes(w)
	}
	return nil
}

func (s *Saturation) print(w io.Writer) {
	fmt.Fprintf(w, "%s requests per second (%s to %s) hold p%s ≤ %v with at most %s %% of errors, with %s arrivals.\nA closed loop peaks at %s.\n\n",
		short(s.Found.Value), short(s.Found.Low), short(s.Found.High), strconv.FormatFloat(100*s.Objective.Quantile, 'f', -1, 64), s.Objective.Limit,
		strconv.FormatFloat(100*s.Objective.Errors, 'f', -1, 64), s.Arrivals, short(s.Peak))
	fmt.Fprintf(w, "TRIED/S\tREQUESTS\tBAD\tP%s\n", strconv.FormatFloat(100*s.Objective.Quantile, 'f', -1, 64))
	for _, t := range s.byRate() {
		fmt.Fprintf(w, "%s\t%d\t%.2f %%\t%s\n", short(t.Rate), t.Sent, 100*t.Bad, micros(t.Quantile))
	}
	fmt.Fprintln(w)
}

// byRate are the trials from the lowest rate on.
func (s *Saturation) byRate() []Trial {
	return slices.SortedFunc(slices.Values(s.Trials), func(a, b Trial) int { return cmp.Compare(a.Rate, b.Rate) })
}

func (g *Group) print(w io.Writer, name string, sent int64) {
	l := &g.Latency
	fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.2f %%\n", name, g.Rate.text(short), l.P50.text(micros), l.P90.text(micros), l.P99.text(micros), l.P999.text(micros),
		l.Mean.text(micros), 100*float64(g.Failed)/float64(max(sent, 1)))
	if g.Between != nil {
		fmt.Fprintf(w, "  first response\t\t%s\t%s\t%s\t%s\t%s\t\n", g.First.P50.text(micros), g.First.P90.text(micros), g.First.P99.text(micros), g.First.P999.text(micros), g.First.Mean.text(micros))
		fmt.Fprintf(w, "  between responses\t%s/s\t%s\t%s\t%s\t%s\t%s\t\n", g.Responses.text(short), g.Between.P50.text(micros), g.Between.P90.text(micros), g.Between.P99.text(micros),
			g.Between.P999.text(micros), g.Between.Mean.text(micros))
	}
}

// notes writes what the table does not have.
func (m *Measurement) notes(w io.Writer) {
	fmt.Fprintf(w, "\n%s: the generator used %s of processor time per request", m.Load, micros(m.Generator.CPUPerRequest))
	if m.Load.Concurrency == 0 {
		fmt.Fprintf(w, " and sent 99 %% within %s of their time", micros(m.Generator.LagP99))
	}
	fmt.Fprintln(w, ".")
	if a := m.Answers; a != nil {
		fmt.Fprintf(w, "%d of %d responses differ from the recorded ones.\n", a.Different, a.Compared)
	}
	if m.Filled > 0 {
		fmt.Fprintf(w, "%d requests were recorded without their contents, and sent with zeros.\n", m.Filled)
	}
	if s := m.Server; s != nil && s.Error == "" {
		fmt.Fprintf(w, "  server: batches of %.2f; queue %s, input %s, execution %s, output %s", s.Batch, micros(s.Queue), micros(s.Input), micros(s.Infer), micros(s.Output))
		if s.CPU > 0 {
			fmt.Fprintf(w, "; %s of processor time per request, %.0f MiB", micros(s.CPU), s.Memory/(1<<20))
		}
		for i, u := range s.GPU {
			fmt.Fprintf(w, "; GPU %d %.0f %% busy", i, 100*u)
		}
		fmt.Fprintln(w)
	} else if s != nil {
		fmt.Fprintf(w, "  server: no metrics: %s\n", s.Error)
	}
	for _, kind := range slices.Sorted(maps.Keys(m.All.Errors)) {
		fmt.Fprintf(w, "  failed %d times: %s: %s\n", m.All.Errors[kind], kind, m.All.Examples[kind])
	}
	if m.Generator.Bottleneck != "" {
		fmt.Fprintf(w, "  THE CLIENT IS THE BOTTLENECK: %s.\n", m.Generator.Bottleneck)
	}
}

// WriteCSV writes the columns of perf_analyzer: rows by throughput, times in
// microseconds. The time that the client takes to send and receive is not measured
// apart: the network's column has all that is not the server's.
func (r *Report) WriteCSV(w io.Writer) error {
	runs := slices.Clone(r.Runs)
	if r.Saturation != nil {
		runs = append(runs, r.Saturation.At)
	}
	slices.SortStableFunc(runs, func(a, b *Measurement) int { return cmp.Compare(a.All.Rate.Value, b.All.Rate.Value) })
	out := csv.NewWriter(w)
	first := "Concurrency"
	if len(runs) > 0 && runs[0].Load.Concurrency == 0 {
		first = "Request Rate"
	}
	rows := [][]string{{
		first, "Inferences/Second", "Client Send", "Network+Server Send/Recv", "Server Queue", "Server Compute Input", "Server Compute Infer", "Server Compute Output",
		"Client Recv", "p50 latency", "p90 latency", "p95 latency", "p99 latency", "Avg latency",
	}}
	whole := func(f float64) string {
		if math.IsNaN(f) {
			return "0"
		}
		return strconv.FormatFloat(f, 'f', 0, 64)
	}
	for _, m := range runs {
		load := strconv.Itoa(m.Load.Concurrency)
		if m.Load.Concurrency == 0 {
			load = strconv.FormatFloat(m.Load.Rate, 'f', -1, 64)
		}
		var s Server
		if m.Server != nil {
			s = *m.Server
		}
		l := &m.All.Latency
		network := max(l.Mean.Value-s.Queue-s.Input-s.Infer-s.Output, 0)
		rows = append(rows, []string{
			load, strconv.FormatFloat(m.All.Rate.Value, 'f', 3, 64), "0", whole(network), whole(s.Queue), whole(s.Input), whole(s.Infer), whole(s.Output),
			"0", whole(l.P50.Value), whole(l.P90.Value), whole(l.P95.Value), whole(l.P99.Value), whole(l.Mean.Value),
		})
	}
	return out.WriteAll(rows)
}
