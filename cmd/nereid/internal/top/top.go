// Package top shows the current load of servers from their metrics: the request
// rate of each tenant and model, how much of it is in time, and what is refused and
// why.
package top

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/nereid-serving/nereid/cmd/nereid/internal/scrape"
)

// Sample is what the metrics of some servers said at a time.
type Sample struct {
	at     time.Time
	series map[string]map[string]float64 // by metric, and then by row and column of its table
}

// counters are the metrics that are read: the label that names the row of a table, and the
// one, if any, whose values are columns.
func counters() map[string]struct{ row, column string } {
	return map[string]struct{ row, column string }{
		"nereid_gateway_requests_total":          {"model", "reason"},
		"nereid_gateway_tenant_requests_total":   {"tenant", "outcome"},
		"nereid_gateway_tenant_cost_units_total": {"tenant", ""},
		"nv_inference_exec_count":                {"model", ""},
		"nv_inference_count":                     {"model", ""},
		"nv_inference_pending_request_count":     {"model", ""},
	}
}

// Read reads the metrics of servers, such as localhost:8002.
func Read(ctx context.Context, servers []string) (*Sample, error) {
	s := &Sample{at: time.Now(), series: make(map[string]map[string]float64)}
	for _, server := range servers {
		if !strings.Contains(server, "://") {
			server = "http://" + server
		}
		if err := s.read(ctx, strings.TrimSuffix(server, "/")+"/metrics"); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *Sample) read(ctx context.Context, page string) error {
	families, err := scrape.Read(ctx, page)
	if e := new(url.Error); errors.As(err, &e) && e.Op == "Get" {
		return fmt.Errorf("%w\nname ports of metrics with --metrics=HOST:PORT, or start a server with nereid serve", err)
	}
	if err != nil {
		return err
	}
	s.add(families)
	return nil
}

// between separates a row from a column: no label has it.
const between = "\x00"

func (s *Sample) add(families map[string]*dto.MetricFamily) {
	for name, of := range counters() {
		for _, m := range families[name].GetMetric() {
			row, column := "", ""
			for _, l := range m.GetLabel() {
				switch l.GetName() {
				case of.row:
					row = l.GetValue()
				case of.column:
					column = l.GetValue()
				}
			}
			if s.series[name] == nil {
				s.series[name] = make(map[string]float64)
			}
			s.series[name][row+between+column] += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
}

// rates are how much each series of a metric has grown a second, by row and column.
func rates(before, after *Sample, name string) map[string]map[string]float64 {
	seconds := after.at.Sub(before.at).Seconds()
	all := make(map[string]map[string]float64)
	for key, v := range after.series[name] {
		row, column, _ := strings.Cut(key, between)
		if all[row] == nil {
			all[row] = make(map[string]float64)
		}
		if d := v - before.series[name][key]; d > 0 && seconds > 0 {
			all[row][column] += d / seconds
		}
	}
	return all
}

// Print prints what has happened between two samples.
func Print(w io.Writer, before, after *Sample) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	executed, rows := rates(before, after, "nv_inference_exec_count"), rates(before, after, "nv_inference_count")
	fmt.Fprintln(t, "MODEL\tREQUESTS/S\tOK/S\tBATCH\tWAIT\tREFUSED OR FAILED/S")
	for name, by := range sorted(rates(before, after, "nereid_gateway_requests_total")) {
		total, other := split(by, "ok")
		batch := "-"
		if n := executed[name][""]; n > 0 {
			batch = fmt.Sprintf("%.1f", rows[name][""]/n)
		}
		fmt.Fprintf(t, "%s\t%.1f\t%.1f\t%s\t%.0f\t%s\n", name, total, by["ok"], batch, after.series["nv_inference_pending_request_count"][name+between], other)
	}
	tenants := rates(before, after, "nereid_gateway_tenant_requests_total")
	if len(tenants) > 0 {
		costs := rates(before, after, "nereid_gateway_tenant_cost_units_total")
		fmt.Fprintln(t, "\nTENANT\tREQUESTS/S\tGOOD/S\tCOST UNITS/S\t\tLATE, REFUSED OR FAILED/S")
		for name, by := range sorted(tenants) {
			total, other := split(by, "good")
			fmt.Fprintf(t, "%s\t%.1f\t%.1f\t%.1f\t\t%s\n", name, total, by["good"], costs[name][""], other)
		}
	}
	return t.Flush()
}

// sorted yields the rows of a table, those with the most first.
func sorted(rows map[string]map[string]float64) func(func(string, map[string]float64) bool) {
	names := slices.SortedFunc(maps.Keys(rows), func(a, b string) int {
		x, _ := split(rows[a], "")
		y, _ := split(rows[b], "")
		return cmp.Or(cmp.Compare(y, x), cmp.Compare(a, b))
	})
	return func(yield func(string, map[string]float64) bool) {
		for _, name := range names {
			if !yield(name, rows[name]) {
				return
			}
		}
	}
}

// split sums up the columns, and writes those that are not the good one, the most first.
func split(by map[string]float64, good string) (total float64, others string) {
	var list []string
	for _, column := range slices.SortedFunc(maps.Keys(by), func(a, b string) int { return cmp.Or(cmp.Compare(by[b], by[a]), cmp.Compare(a, b)) }) {
		total += by[column]
		if column != good && by[column] > 0 {
			list = append(list, fmt.Sprintf("%s %.1f", column, by[column]))
		}
	}
	return total, strings.Join(list, ", ")
}
