package simulate

import (
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Report is what became of a workload's requests. Each request has exactly one outcome.
type Report struct {
	// Name is the policy's name, or recorded.
	Name     string `json:"name"`
	Arrivals int    `json:"arrivals"`
	// InTime requests were answered while somebody waited. Late ones were executed although nobody waited any more.
	InTime int `json:"in_time"`
	Late   int `json:"late"`
	// Refused requests did not run, by reason. Failed ones did, or may have, and have no response.
	Refused map[errs.Reason]int `json:"refused"`
	Failed  map[errs.Reason]int `json:"failed"`
	// Canceled requests were given up by their clients before they ended.
	Canceled int `json:"canceled"`
	// Unfinished requests had not ended when the simulation ran out of events.
	Unfinished int `json:"unfinished"`
	// Goodput is how many requests were answered in time per second of the workload.
	Goodput float64 `json:"goodput_per_s"`
	// Mean, P50 and P99 are times from arrival to the end of the execution, in
	// time or not.
	Mean time.Duration `json:"mean_ns"`
	P50  time.Duration `json:"p50_ns"`
	P99  time.Duration `json:"p99_ns"`
	// Batches ran, of MeanBatch requests each.
	Batches   int     `json:"batches"`
	MeanBatch float64 `json:"mean_batch"`
	// Busy is for how long instances executed, of all instances together, and
	// BusyInTime the share of that which went to requests answered in time.
	Busy       time.Duration `json:"busy_ns"`
	BusyInTime float64       `json:"busy_in_time"`
	// FalseRefusals are refusals, not of canceled requests, that first in, first
	// out would have answered in time; nil if that was not asked for.
	FalseRefusals *Share `json:"false_refusals,omitempty"`
	// Decisions are those of the policy. Wall is how long the simulation took; 0
	// for what was recorded.
	Decisions int           `json:"decisions"`
	Wall      time.Duration `json:"wall_ns"`
	// Tenants is what became of the requests of each; nil where no request has a tenant.
	Tenants map[string]*TenantReport `json:"tenants,omitempty"`

	results []result
}

// TenantReport is what became of one tenant's requests.
type TenantReport struct {
	Arrivals int `json:"arrivals"`
	InTime   int `json:"in_time"`
	// Refused did not run.
	Refused int `json:"refused"`
	// Part is that of InTime among all requests answered in time.
	Part float64       `json:"part_of_in_time"`
	P99  time.Duration `json:"p99_ns"`
}

// Share is a number of requests, and what part of the arrivals they are.
type Share struct {
	Requests int     `json:"requests"`
	Of       float64 `json:"share"`
}

// newReport counts results.
func newReport(name string, w *Workload, results []result, u usage) *Report {
	r := &Report{
		Name: name, Arrivals: len(w.Arrivals), Refused: make(map[errs.Reason]int), Failed: make(map[errs.Reason]int),
		Batches: u.batches, Busy: u.busy, results: results,
	}
	var times []time.Duration
	var sum time.Duration
	ofTenants := make(map[string][]time.Duration)
	for i := range results {
		a, end := &w.Arrivals[i], &results[i]
		of := r.tenant(a.Tenant)
		of.Arrivals++
		switch {
		case end.outcome == unfinished:
			r.Unfinished++
			continue
		case end.reason == errs.Canceled, end.outcome == executed && a.Canceled != 0 && end.end > a.Canceled:
			r.Canceled++
		case end.outcome == refused:
			r.Refused[end.reason]++
			of.Refused++
		case end.outcome == failed:
			r.Failed[end.reason]++
		case inTimeFor(a, end.end):
			r.InTime++
			of.InTime++
		default:
			r.Late++
		}
		if end.outcome == executed {
			times = append(times, end.end.Sub(a.At))
			ofTenants[a.Tenant] = append(ofTenants[a.Tenant], end.end.Sub(a.At))
			sum += end.end.Sub(a.At)
		}
	}
	r.endTenants(ofTenants)
	if n := len(times); n > 0 {
		slices.Sort(times)
		r.Mean, r.P50, r.P99 = sum/time.Duration(n), times[n/2], times[n*99/100]
	}
	if n := len(w.Arrivals); n > 1 {
		if span := w.Arrivals[n-1].At.Sub(w.Arrivals[0].At).Seconds(); span > 0 {
			r.Goodput = float64(r.InTime) / span
		}
	}
	if u.batches > 0 {
		r.MeanBatch, r.BusyInTime = float64(u.requests)/float64(u.batches), u.inTime.Seconds()/u.busy.Seconds()
	}
	return r
}

// tenant returns the report of a tenant, which it adds.
func (r *Report) tenant(name string) *TenantReport {
	t := r.Tenants[name]
	if t == nil {
		if r.Tenants == nil {
			r.Tenants = make(map[string]*TenantReport)
		}
		t = new(TenantReport)
		r.Tenants[name] = t
	}
	return t
}

// endTenants summarizes the reports of tenants, where there are any.
func (r *Report) endTenants(times map[string][]time.Duration) {
	if _, none := r.Tenants[""]; none && len(r.Tenants) == 1 {
		r.Tenants = nil
	}
	for name, t := range r.Tenants {
		t.Part = float64(t.InTime) / float64(max(r.InTime, 1))
		if n := len(times[name]); n > 0 {
			slices.Sort(times[name])
			t.P99 = times[name][n*99/100]
		}
	}
}

// Compare counts the refusals of a report that are false by what became of the
// same workload under FIFO.
func (r *Report) Compare(w *Workload, fifo *Report) {
	n := 0
	for i := range r.results {
		mine, theirs := &r.results[i], &fifo.results[i]
		if mine.outcome == refused && mine.reason != errs.Canceled && theirs.outcome == executed && inTimeFor(&w.Arrivals[i], theirs.end) {
			n++
		}
	}
	r.FalseRefusals = &Share{n, float64(n) / float64(max(len(r.results), 1))}
}
