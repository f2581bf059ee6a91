package tenants

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/policy"
)

// usage is what a tenant has used lately and is using. It outlives policies.
type usage struct {
	name string

	mu       sync.Mutex
	limits   policy.Limits
	requests meter
	units    meter // of cost
	bytes    meter
	retries  meter // of retries, for each of which other requests make up
	budgets  []window
	running  int
	used     float64 // cost units, since the start
}

// meter is a token bucket: what is left, which grows with time up to a burst. It may be
// below nothing, since what a request costs is known at its end.
type meter struct {
	rate, burst float64 // a second, and at most; a rate of 0 is no bound
	left        float64
	at          time.Time
}

// window is a budget and what was used of it.
type window struct {
	policy.Budget
	since           time.Time // of the window
	requests, units float64   // used
}

// Usage is what a tenant has used and is using.
type Usage struct {
	Tenant    string
	Running   int
	CostUnits float64 // since the start
}

func (u *usage) report() Usage {
	u.mu.Lock()
	defer u.mu.Unlock()
	return Usage{Tenant: u.name, Running: u.running, CostUnits: u.used}
}

// configure sets the limits of the policy that there is now. What was used counts on.
func (u *usage) configure(of *policy.Tenant, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	l := &of.Limits
	u.limits = *l
	burst := l.Burst.Seconds()
	u.requests.set(l.Requests, max(l.Requests*burst, 1), now)
	u.units.set(l.CostUnits, l.CostUnits*burst, now)
	u.bytes.set(l.Bytes, l.Bytes*burst, now)
	before := u.budgets
	u.budgets = make([]window, len(of.Budgets))
	for i, b := range of.Budgets {
		u.budgets[i].Budget = b
		for _, w := range before {
			if w.Per == b.Per {
				u.budgets[i].since, u.budgets[i].requests, u.budgets[i].units = w.since, w.requests, w.units
			}
		}
	}
}

func (m *meter) set(rate, burst float64, now time.Time) {
	if m.at.IsZero() || m.rate == 0 { // new, or without a bound so far
		m.left, m.at = burst, now
	}
	m.fill(now)
	m.rate, m.burst, m.left = rate, burst, min(m.left, burst)
}

// fill adds what the time since has given.
func (m *meter) fill(now time.Time) {
	if d := now.Sub(m.at); d > 0 {
		m.left = min(m.left+m.rate*d.Seconds(), m.burst)
		m.at = now
	}
}

// wait is after what time n may be taken; 0 is now. More than the burst may be taken
// when nothing was used for so long, or it never could be.
func (m *meter) wait(n float64, now time.Time) time.Duration {
	if m.rate == 0 {
		return 0
	}
	m.fill(now)
	missing := min(n, m.burst) - m.left
	if missing <= 1e-9 {
		return 0
	}
	return time.Duration(math.Min(missing/m.rate, 1e6) * float64(time.Second))
}

// roll begins a new window where the old one is over.
func (w *window) roll(now time.Time) {
	if since := now.Truncate(w.Per); !since.Equal(w.since) {
		w.since, w.requests, w.units = since, 0, 0
	}
}

// spent says what of the budget does not cover one more request and its cost; empty
// where it does.
func (w *window) spent(cost float64, now time.Time) string {
	w.roll(now)
	switch {
	case w.Budget.Requests > 0 && w.requests+1 > w.Budget.Requests:
		return fmt.Sprintf("%v requests per %s", w.Budget.Requests, w.Per)
	case w.CostUnits > 0 && (w.units >= w.CostUnits || w.units+cost > w.CostUnits && w.units > 0):
		return fmt.Sprintf("%v cost units per %s", w.CostUnits, w.Per)
	}
	return ""
}

// Demand is what a request asks of its tenant's limits.
type Demand struct {
	// Cost is what the request is expected to cost, in cost units.
	Cost  float64
	Bytes float64
	// Retry says that the request was sent before.
	Retry bool
}

// Reservation is what a request holds of its tenant's limits until it is settled. The
// zero Reservation is of a request without a tenant.
type Reservation struct {
	usage *usage
	cost  float64
	// Limit, Left and Reset are the tenant's bound of requests, how many are left of it
	// and when there are as many as can be; a Limit of 0 is no bound.
	Limit, Left int64
	Reset       time.Duration
	// Window is for how long Limit is.
	Window time.Duration
}

// Cost is what was reserved, in cost units.
func (r *Reservation) Cost() float64 { return r.cost }

// Reserve takes what a request asks for, until it is settled, or refuses it: nothing is
// taken then. The reasons are tenant_concurrency, quota_exceeded and retry_budget.
func (t *Tenant) Reserve(d Demand) (Reservation, error) {
	u, now := t.usage, t.view.tenants.now()
	u.mu.Lock()
	defer u.mu.Unlock()
	err := u.refusal(d, now)
	if err == nil {
		err = u.retry(d, t.view.RetryBudget)
		if d.Retry {
			t.view.tenants.meter.Retried(t.Name, err == nil)
		}
	}
	if err != nil {
		if err = t.Refuse(err); err != nil {
			return u.reservation(), err
		}
	}
	u.running++
	u.requests.left--
	u.units.left -= d.Cost
	u.bytes.left -= d.Bytes
	for i := range u.budgets {
		u.budgets[i].requests++
		u.budgets[i].units += d.Cost
	}
	r := u.reservation()
	r.usage, r.cost = u, d.Cost
	return r, nil
}

// reservation tells what is left.
func (u *usage) reservation() Reservation {
	m := &u.requests
	if m.rate == 0 {
		return Reservation{}
	}
	return Reservation{
		Limit: int64(m.burst), Left: int64(max(m.left, 0)), Window: time.Duration(m.burst / m.rate * float64(time.Second)),
		Reset: time.Duration((m.burst - m.left) / m.rate * float64(time.Second)),
	}
}

// leastCost is what every request is taken to cost, in cost units: one of which nothing
// is known must not pass where nothing is left.
const leastCost = 1e-3

func (u *usage) refusal(d Demand, now time.Time) error {
	if most := u.limits.Concurrency; most > 0 && u.running >= most {
		return errs.New(errs.TenantConcurrency, "tenant '%s' has %d requests in flight, as many as it may", u.name, u.running)
	}
	for _, bound := range []struct {
		meter *meter
		needs float64
		what  string
	}{{&u.requests, 1, "requests"}, {&u.units, max(d.Cost, leastCost), "cost units"}, {&u.bytes, d.Bytes, "bytes"}} {
		if wait := bound.meter.wait(bound.needs, now); wait > 0 {
			return errs.New(errs.QuotaExceeded, "tenant '%s' has used its %v %s per second", u.name, bound.meter.rate, bound.what).WithRetry(wait)
		}
	}
	for i := range u.budgets {
		if what := u.budgets[i].spent(d.Cost, now); what != "" {
			return errs.New(errs.QuotaExceeded, "tenant '%s' has used its %s", u.name, what).WithRetry(u.budgets[i].since.Add(u.budgets[i].Per).Sub(now))
		}
	}
	return nil
}

// A tenant may always send so many retries, and save up so many.
const (
	retriesAtFirst = 10
	retriesSaved   = 100
)

// retry takes a retry from what the other requests have made up for, or refuses it:
// Envoy's and gRPC's way to keep retries from multiplying an overload.
func (u *usage) retry(d Demand, budget float64) error {
	if budget < 0 {
		return nil
	}
	if u.retries.burst == 0 {
		u.retries.burst, u.retries.left = retriesSaved, retriesAtFirst
	}
	if !d.Retry {
		u.retries.left = min(u.retries.left+budget, retriesSaved)
		return nil
	}
	if u.retries.left < 1 {
		return errs.New(errs.RetryBudget, "tenant '%s' sends more retries than %.0f%% of its requests", u.name, 100*budget)
	}
	u.retries.left--
	return nil
}

// Settle ends a reservation with what the request has cost, in cost units.
func (r *Reservation) Settle(cost float64) {
	u := r.usage
	if u == nil {
		return
	}
	r.usage = nil
	u.mu.Lock()
	defer u.mu.Unlock()
	u.running--
	u.used += cost
	u.units.left = min(u.units.left+r.cost-cost, u.units.burst)
	for i := range u.budgets {
		u.budgets[i].units = max(u.budgets[i].units+cost-r.cost, 0)
	}
}
