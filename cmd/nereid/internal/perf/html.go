package perf

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

//go:embed report.html
var page string

// WriteHTML writes the report as one page with plots. It loads nothing from
// elsewhere and runs no script.
func (r *Report) WriteHTML(w io.Writer) error {
	t, err := template.New("report").Funcs(template.FuncMap{
		"short": short, "micros": micros,
		"rate":    func(i Interval) string { return i.text(short) },
		"latency": func(i Interval) string { return i.text(micros) },
		"percent": func(f float64) string { return strconv.FormatFloat(100*f, 'g', 3, 64) + " %" },
		"failed": func(g Group) string {
			return strconv.FormatFloat(100*float64(g.Failed)/float64(max(g.Answered+g.Failed, 1)), 'f', 2, 64) + " %"
		},
		"width": func(band *[2]float64) float64 { return max(band[1]-band[0], 1) },
		"time":  func(t time.Time) string { return t.Format("2006-01-02 15:04:05 MST") },
	}).Parse(page)
	if err != nil {
		return fmt.Errorf("parse the page of reports: %w", err)
	}
	return t.Execute(w, struct {
		*Report
		All    []*Measurement
		Charts []*chart
	}{r, r.Measurements(), r.charts()})
}

// The plotting area of a chart, in the units of its view box.
const (
	chartWidth, chartHeight = 640, 300
	chartLeft, chartRight   = 64, 32
	chartTop, chartBottom   = 16, 44
	// shownSeries bounds the lines of a chart: as many as there are colors.
	shownSeries = 8
)

// chart is a plot of a few series over one axis.
type chart struct {
	Title, X, Y string
	Series      []*series
	XTicks      []tick
	YTicks      []tick
	// Band is a shaded range of X, such as an interval.
	Band *[2]float64

	xs, ys axis
}

// series is a line with dots, in the units of the data until it is laid out.
type series struct {
	Name   string
	Color  int
	Points []Point
	// Dots says that the points are not joined.
	Dots bool
	// Bars are the low and high end of each point's interval, if there are any.
	Bars []Point
}

type tick struct {
	At   float64
	Text string
}

// axis maps data to the chart.
type axis struct {
	low, high float64
	log       bool
	from, to  float64
}

func (a axis) at(v float64) float64 {
	low, high := a.low, a.high
	if a.log {
		v, low, high = math.Log10(max(v, a.low)), math.Log10(low), math.Log10(high)
	}
	return a.from + (v-low)/(high-low)*(a.to-a.from)
}

// Line is the series as the points of a polyline.
func (s *series) Line() string {
	var b strings.Builder
	for _, p := range s.Points {
		fmt.Fprintf(&b, "%.1f,%.1f ", p.X, p.Y)
	}
	return b.String()
}

// layout computes ticks and moves all points to the view box.
func (c *chart) layout(xText, yText func(float64) string) *chart {
	c.xs.from, c.xs.to = chartLeft, chartWidth-chartRight
	c.ys.from, c.ys.to = chartHeight-chartBottom, chartTop
	c.bounds()
	if c.XTicks == nil {
		for _, v := range steps(c.xs.low, c.xs.high) {
			c.XTicks = append(c.XTicks, tick{v, xText(v)})
		}
	}
	for i := range c.XTicks {
		c.XTicks[i].At = c.xs.at(c.XTicks[i].At)
	}
	values := steps(c.ys.low, c.ys.high)
	if c.ys.log {
		values = decades(c.ys.low, c.ys.high)
	}
	for _, v := range values {
		c.YTicks = append(c.YTicks, tick{c.ys.at(v), yText(v)})
	}
	for i, s := range c.Series {
		s.Color = i % shownSeries
		for j, p := range s.Points {
			s.Points[j] = Point{c.xs.at(p.X), c.ys.at(p.Y)}
		}
		for j, b := range s.Bars {
			s.Bars[j] = Point{c.ys.at(b.X), c.ys.at(b.Y)}
		}
	}
	if c.Band != nil {
		c.Band = &[2]float64{c.xs.at(max(c.Band[0], c.xs.low)), c.xs.at(min(c.Band[1], c.xs.high))}
	}
	return c
}

// bounds makes the axes as long as the data are.
func (c *chart) bounds() {
	c.xs.low, c.xs.high = math.Inf(1), math.Inf(-1)
	c.ys.low, c.ys.high = math.Inf(1), math.Inf(-1)
	for _, s := range c.Series {
		for _, p := range s.Points {
			c.xs.low, c.xs.high = min(c.xs.low, p.X), max(c.xs.high, p.X)
			c.ys.low, c.ys.high = min(c.ys.low, p.Y), max(c.ys.high, p.Y)
		}
		for _, b := range s.Bars {
			c.ys.high = max(c.ys.high, b.Y)
		}
	}
	if !c.ys.log {
		c.ys.low = 0
	}
	if !(c.xs.high > c.xs.low) { // one point, or none
		c.xs.low, c.xs.high = 0, max(2*c.xs.high, 1)
	}
	if !(c.ys.high > c.ys.low) {
		c.ys.low, c.ys.high, c.ys.log = 0, max(c.ys.high, 1), false
	}
}

// steps are about five round values of a range.
func steps(low, high float64) []float64 {
	raw := (high - low) / 5
	step := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, by := range []float64{5, 2} {
		if step*by <= raw {
			step *= by
			break
		}
	}
	var list []float64
	for v := math.Ceil(low/step) * step; v <= high+step*1e-9; v += step {
		list = append(list, v)
	}
	return list
}

// decades are the powers of ten of a range, with its ends where there are none.
func decades(low, high float64) []float64 {
	var list []float64
	for v := math.Pow(10, math.Ceil(math.Log10(low))); v <= high; v *= 10 {
		list = append(list, v)
	}
	if len(list) == 0 {
		list = []float64{low, high}
	}
	return list
}

// charts are the plots of a report.
func (r *Report) charts() []*chart {
	var all []*chart
	if s := r.Saturation; s != nil {
		all = append(all, s.chart())
	}
	runs := r.Measurements()
	if len(runs) > shownSeries {
		runs = runs[:shownSeries]
	}
	if len(r.Runs) > 1 {
		all = append(all, sweepChart(r.Runs))
	}
	quantiles := &chart{Title: "Latency by share of requests", X: "share of requests that were at least as fast", Y: "latency"}
	for _, q := range []float64{0.5, 0.9, 0.99, 0.999} {
		quantiles.XTicks = append(quantiles.XTicks, tick{nines(q), strconv.FormatFloat(100*q, 'f', -1, 64) + " %"})
	}
	for _, m := range runs {
		s := &series{Name: m.Load.String()}
		for _, p := range m.All.Latency.Curve {
			s.Points = append(s.Points, Point{nines(p.X), p.Y})
		}
		quantiles.Series = append(quantiles.Series, s)
	}
	all = append(all, quantiles.layout(short, micros))
	if n := len(runs); n > 0 {
		all = append(all, runs[n-1].timeChart())
	}
	return all
}

// nines spreads quantiles so that 90 %, 99 % and 99.9 % are equally far apart.
func nines(q float64) float64 { return -math.Log10(1 - q) }

func (s *Saturation) chart() *chart {
	c := &chart{
		Title: "Requests that missed the objective, by rate", X: "requests per second; shaded: the rate that was found, with its interval", Y: "missed",
		Band: &[2]float64{s.Found.Low, s.Found.High}, ys: axis{log: true},
	}
	tried, allowed := &series{Name: "trials", Dots: true}, &series{Name: "allowed"}
	low, high := math.Inf(1), math.Inf(-1)
	for _, t := range s.byRate() {
		share := max(t.Bad, 1e-4)
		tried.Points = append(tried.Points, Point{t.Rate, share})
		low, high = min(low, t.Rate), max(high, t.Rate)
	}
	allowed.Points = []Point{{low, 1 - s.Objective.Quantile}, {high, 1 - s.Objective.Quantile}}
	c.Series = []*series{tried, allowed}
	return c.layout(short, func(f float64) string { return strconv.FormatFloat(100*f, 'g', 2, 64) + " %" })
}

func sweepChart(runs []*Measurement) *chart {
	c := &chart{Title: "Latency by throughput", X: "answered requests per second", Y: "latency"}
	for _, name := range []string{"p50", "p99"} {
		s := &series{Name: name}
		for _, m := range runs {
			i := figures()[name](m)
			s.Points = append(s.Points, Point{m.All.Rate.Value, i.Value})
			if i.known() {
				s.Bars = append(s.Bars, Point{i.Low, i.High})
			} else {
				s.Bars = append(s.Bars, Point{i.Value, i.Value})
			}
		}
		c.Series = append(c.Series, s)
	}
	return c.layout(short, micros)
}

func (m *Measurement) timeChart() *chart {
	c := &chart{Title: "Latency over time, " + m.Load.String(), X: "seconds", Y: "latency"}
	p50, p99 := &series{Name: "p50"}, &series{Name: "p99"}
	for _, w := range m.Windows {
		if w.Answered > 0 {
			p50.Points = append(p50.Points, Point{w.At, w.P50})
			p99.Points = append(p99.Points, Point{w.At, w.P99})
		}
	}
	c.Series = []*series{p50, p99}
	return c.layout(short, micros)
}
