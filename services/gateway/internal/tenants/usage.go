package tenants

import (
	"context"
	"sync"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/policy"
)

// usage is what a tenant has used lately and is using. It outlives policies.
type usage struct {
	name string

	mu          sync.Mutex
	concurrency int // at most; 0 is no bound
	meters      []meter
	retries     float64 // that other requests have made up for
	seen        bool    // whether it is
	running     int
	asked       bool // for more than there is, since the last lease
}

// configure sets the limits of the policy that there is now. What was used counts on.
func (u *usage) configure(of *policy.Tenant, leased bool, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	before := u.meters
	u.concurrency, u.meters = of.Limits.Concurrency, nil
	for _, b := range bounds(of) {
		m := meter{Bound: b, Level: b.Full(now), leased: leased}
		if leased { // until the first lease, which takes it into account
			m.Left = min(b.burst, max(1, leastLease*b.burst))
			m.owed = m.Left
		}
		for i := range before {
			if old := &before[i]; old.Name() == b.Name() {
				old.fill(now)
				m.Level, m.spent, m.owed = Level{min(old.Left, b.burst), old.At}, old.spent, old.owed
			}
		}
		u.meters = append(u.meters, m)
	}
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
// taken then. The reasons are tenant_concurrency, quota_exceeded and retry_budget. Where
// limits are shared and the other gateways may have more of them, it waits for that for a
// moment.
func (t *Tenant) Reserve(ctx context.Context, d Demand) (Reservation, error) {
	if t.leaseHelps(d) {
		t.view.tenants.awaitLease(ctx)
	}
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
	for i := range u.meters {
		u.meters[i].take(d.of(u.meters[i].kind))
	}
	r := u.reservation()
	r.usage, r.cost = u, d.Cost
	return r, nil
}

// leaseHelps reports whether what a request asks for is not here, and may be with what all
// gateways share.
func (t *Tenant) leaseHelps(d Demand) bool {
	if !t.view.tenants.leased.Load() {
		return false
	}
	u, now := t.usage, t.view.tenants.now()
	u.mu.Lock()
	defer u.mu.Unlock()
	short, starved := false, false
	for i := range u.meters {
		if m := &u.meters[i]; m.wait(max(d.of(m.kind), leastCost), now) > 0 {
			short, starved = true, starved || m.starved
		}
	}
	u.asked = u.asked || short
	return short && !starved
}

// reservation tells what is left.
func (u *usage) reservation() Reservation {
	for i := range u.meters {
		m := &u.meters[i]
		if m.kind == requests && m.per == 0 {
			return Reservation{
				Limit: int64(m.burst), Left: int64(max(m.Left, 0)), Window: time.Duration(m.burst / m.rate * float64(time.Second)),
				Reset: time.Duration((m.burst - m.Left) / m.rate * float64(time.Second)),
			}
		}
	}
	return Reservation{}
}

// leastCost is what every request is taken to cost, in cost units: one of which nothing
// is known must not pass where nothing is left.
const leastCost = 1e-3

// of is how much of a kind is asked for.
func (d *Demand) of(k kind) float64 {
	switch k {
	case requests:
		return 1
	case costUnits:
		return d.Cost
	}
	return d.Bytes
}

// refusal is why a request is refused; nil where it is not.
func (u *usage) refusal(d Demand, now time.Time) error {
	if u.concurrency > 0 && u.running >= u.concurrency {
		return errs.New(errs.TenantConcurrency, "tenant '%s' has %d requests in flight, as many as it may", u.name, u.running)
	}
	for i := range u.meters {
		m := &u.meters[i]
		if wait := m.wait(max(d.of(m.kind), leastCost), now); wait > 0 {
			return errs.New(errs.QuotaExceeded, "tenant '%s' has used its %s", u.name, m.String()).WithRetry(wait)
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
	if !u.seen {
		u.seen, u.retries = true, retriesAtFirst
	}
	if !d.Retry {
		u.retries = min(u.retries+budget, retriesSaved)
		return nil
	}
	if u.retries < 1 {
		return errs.New(errs.RetryBudget, "tenant '%s' sends more retries than %.0f%% of its requests", u.name, 100*budget)
	}
	u.retries--
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
	for i := range u.meters {
		if m := &u.meters[i]; m.kind == costUnits {
			m.take(cost - r.cost)
		}
	}
}
