package perf

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Gate is a condition under which a command fails, for continuous integration.
type Gate struct {
	text  string
	read  func(*Measurement) Interval
	above bool
	limit float64
}

// figures are the names by which gates and comparisons read a measurement. Latencies
// are in microseconds, errors a share.
func figures() map[string]func(*Measurement) Interval {
	return map[string]func(*Measurement) Interval{
		"mean":  func(m *Measurement) Interval { return m.All.Latency.Mean },
		"p50":   func(m *Measurement) Interval { return m.All.Latency.P50 },
		"p90":   func(m *Measurement) Interval { return m.All.Latency.P90 },
		"p95":   func(m *Measurement) Interval { return m.All.Latency.P95 },
		"p99":   func(m *Measurement) Interval { return m.All.Latency.P99 },
		"p99.9": func(m *Measurement) Interval { return m.All.Latency.P999 },
		"rate":  func(m *Measurement) Interval { return m.All.Rate },
		"errors": func(m *Measurement) Interval {
			share := float64(m.All.Failed) / float64(max(m.All.Answered+m.All.Failed, 1))
			return Interval{share, share, share}
		},
	}
}

// ParseGate reads a condition such as p99>20ms, rate<500 or errors>0.1%.
func ParseGate(text string) (Gate, error) {
	invalid := func(why string) (Gate, error) {
		return Gate{}, errs.New(errs.ConfigInvalid, "%q: %s: want a figure (mean, p50, p90, p95, p99, p99.9, rate, errors), > or <, and a limit, such as p99>20ms", text, why)
	}
	at := strings.IndexAny(text, "<>")
	if at < 0 {
		return invalid("no > or <")
	}
	name, limit := strings.TrimSpace(text[:at]), strings.TrimSpace(text[at+1:])
	g := Gate{text: text, read: figures()[name], above: text[at] == '>'}
	if g.read == nil {
		return invalid("unknown figure")
	}
	var err error
	switch name {
	case "rate":
		g.limit, err = strconv.ParseFloat(limit, 64)
	case "errors":
		g.limit, err = ParseShare(limit)
	default:
		var d time.Duration
		d, err = time.ParseDuration(limit)
		g.limit = float64(d) / float64(time.Microsecond)
	}
	if err != nil {
		return invalid("unknown limit")
	}
	return g, nil
}

// ParseShare reads a share such as 0.001 or 0.1%.
func ParseShare(text string) (float64, error) {
	number, percent := strings.CutSuffix(text, "%")
	f, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if percent {
		f /= 100
	}
	if err == nil && !(f >= 0 && f <= 1) {
		err = errs.New(errs.ConfigInvalid, "%q is no share: want 0 to 1, or 0%% to 100%%", text)
	}
	return f, err
}

// Broken reports whether a measurement meets the condition.
func (g Gate) Broken(m *Measurement) bool {
	value := g.read(m).Value
	if value != value { //nolint:gocritic // no requests were answered
		return g.above
	}
	return g.above && value > g.limit || !g.above && value < g.limit
}

// String is the condition as it was written.
func (g Gate) String() string { return g.text }

// PrintDifferences compares the runs of two reports that had the same load. A
// difference is real where its interval does not contain 0.
func PrintDifferences(w io.Writer, before, after *Report) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "LOAD\tFIGURE\tBEFORE\tAFTER\tDIFFERENCE\t")
	found := false
	for _, m := range after.Measurements() {
		for _, old := range before.Measurements() {
			if old.Load != m.Load {
				continue
			}
			found = true
			for _, name := range []string{"rate", "mean", "p50", "p99"} {
				printDifference(t, name, old, m)
			}
		}
	}
	if !found {
		return errs.New(errs.ConfigInvalid, "the reports have no load in common: %s before, %s now", loads(before), loads(after))
	}
	return t.Flush()
}

// printDifference prints a row of the comparison.
func printDifference(w io.Writer, name string, before, after *Measurement) {
	write := micros
	if name == "rate" {
		write = short
	}
	was, is := figures()[name](before), figures()[name](after)
	difference := is.minus(was)
	verdict := "within the noise"
	switch {
	case !difference.known():
		verdict = "too little data"
	case difference.Low > 0 || difference.High < 0:
		verdict = fmt.Sprintf("%+.1f %%", 100*difference.Value/was.Value)
	}
	fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", after.Load, name, was.text(write), is.text(write), difference.text(write), verdict)
}

// Measurements are the runs of a report, that of a search included.
func (r *Report) Measurements() []*Measurement {
	if r.Saturation != nil && r.Saturation.At != nil {
		return append(r.Runs[:len(r.Runs):len(r.Runs)], r.Saturation.At)
	}
	return r.Runs
}

func loads(r *Report) string {
	var names []string
	for _, m := range r.Measurements() {
		names = append(names, m.Load.String())
	}
	return strings.Join(names, ", ")
}
