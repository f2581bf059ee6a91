package tenants

import (
	"container/list"
	"context"
	"math"
	"sync"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/policy"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
)

// usage is what a tenant has used recently and is using now. It outlives policies.
type usage struct {
	name    string
	element *list.Element // in the recent tenants; nil for a tenant that the policy lists; guarded by Tenants.mu

	mu          sync.Mutex
	generation  uint64 // of the policy that set the limits
	concurrency int    // maximum; 0 means no bound
	meters      []meter
	retries     float64 // retries that other requests have earned
	seen        bool    // retries has been initialized
	running     int
	asked       bool // more was needed than is here, since the last lease
	memory      *memory.Budget
	share       int64 // of memory, in bytes; 0 means the usual share
}

// usualShare is the fraction of all memory that a tenant without a bound of its own may hold; the rest remains
// for other tenants.
const usualShare = 0.75

// Memory returns the budget of the tenant's calls, which is part of the budget of all calls.
func (t *Tenant) Memory(all *memory.Budget) *memory.Budget {
	u := t.usage
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.memory == nil {
		u.memory = all.Within(0)
	}
	share := u.share
	if share == 0 {
		share = int64(usualShare * float64(all.Cap(math.MaxInt64)))
	}
	u.memory.SetLimit(share)
	return u.memory
}

// configure sets the limits of a policy, unless those of this or a later policy are set. Past use still counts.
func (u *usage) configure(of *policy.Tenant, generation uint64, leased bool, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if generation <= u.generation {
		return
	}
	u.generation = generation
	before := u.meters
	u.concurrency, u.share, u.meters = of.Limits.Concurrency, of.Limits.Memory, nil
	for _, b := range bounds(of) {
		m := meter{Bound: b, Level: b.Full(now), leased: leased}
		if leased { // until the first lease, which takes it into account
			m.Left = min(b.burst, max(1, leastLease*b.burst))
			m.owed, m.known, m.alone = m.Left, b.burst, m.Left
		}
		for i := range before {
			if old := &before[i]; old.Name() == b.Name() {
				old.fill(now)
				m.Level, m.spent, m.owed = Level{min(old.Left, b.burst), old.At}, old.spent, old.owed
				m.known, m.alone = min(old.known, b.burst), old.alone
			}
		}
		u.meters = append(u.meters, m)
	}
}

// inFlight reports whether the tenant has requests in flight.
func (u *usage) inFlight() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.running > 0
}

// Demand is what a decoded request needs of its tenant's limits.
type Demand struct {
	// Cost is the request's predicted cost, in cost units.
	Cost float64
	// Bytes is the size of its tensors.
	Bytes float64
}

// Reservation is what a request holds of its tenant's limits until it is settled. A request without a tenant
// has the zero Reservation.
type Reservation struct {
	tenant *Tenant
	cost   float64
	// Limit is the tenant's request limit, Left how many requests are left of it, and Reset the time until it
	// is full again. A Limit of 0 means no limit.
	Limit, Left int64
	Reset       time.Duration
	// Window is the time that Limit applies to.
	Window time.Duration
}

// Cost returns the reserved cost, in cost units.
func (r *Reservation) Cost() float64 { return r.cost }

// Enter counts a request that has not been read as in flight for its tenant until it is settled, or refuses it
// and takes nothing. retry says that the request was sent before. The reasons are tenant_concurrency,
// quota_exceeded and retry_budget. If limits are shared and a lease may provide more, it briefly waits for one.
func (t *Tenant) Enter(ctx context.Context, retry bool) (Reservation, error) {
	entering := func(m *meter) float64 {
		if m.kind == requests {
			return 1
		}
		return leastCost
	}
	if t.leaseHelps(entering) {
		t.view.tenants.awaitLease(ctx)
	}
	u, now := t.usage, t.view.tenants.now()
	u.mu.Lock()
	defer u.mu.Unlock()
	err := u.crowded()
	if err == nil {
		err = u.refusal(entering, now)
	}
	if err == nil {
		err = u.retry(retry, t.view.RetryBudget)
		if retry {
			t.view.tenants.meter.Retried(t.Name, err == nil)
		}
	}
	if err != nil {
		if err = t.Refuse(err); err != nil {
			return u.reservation(), err
		}
	}
	u.running++
	u.takeRequests(1)
	r := u.reservation()
	r.tenant = t
	return r, nil
}

// Price reserves what the request is expected to use, or refuses it with the reason quota_exceeded; a refused
// request does not count against the request limit either.
func (r *Reservation) Price(ctx context.Context, d Demand) error {
	asked := func(m *meter) float64 {
		switch m.kind {
		case costUnits:
			return max(d.Cost, leastCost)
		case bytes:
			return max(d.Bytes, leastCost)
		}
		return 0
	}
	t := r.tenant
	if t.leaseHelps(asked) {
		t.view.tenants.awaitLease(ctx)
	}
	u, now := t.usage, t.view.tenants.now()
	u.mu.Lock()
	defer u.mu.Unlock()
	if err := u.refusal(asked, now); err != nil {
		if err = t.Refuse(err); err != nil {
			u.takeRequests(-1)
			return err
		}
	}
	r.cost = d.Cost
	for i := range u.meters {
		switch m := &u.meters[i]; m.kind {
		case costUnits:
			m.take(d.Cost)
		case bytes:
			m.take(d.Bytes)
		}
	}
	return nil
}

// takeRequests takes n requests from the request bounds.
func (u *usage) takeRequests(n float64) {
	for i := range u.meters {
		if m := &u.meters[i]; m.kind == requests {
			m.take(n)
		}
	}
}

// leaseHelps reports whether the demand exceeds what is here, and a lease from the shared limits may help.
func (t *Tenant) leaseHelps(asked func(*meter) float64) bool {
	if !t.view.tenants.leased.Load() {
		return false
	}
	u, now := t.usage, t.view.tenants.now()
	u.mu.Lock()
	defer u.mu.Unlock()
	short, starved := false, false
	for i := range u.meters {
		if m := &u.meters[i]; m.short(asked(m), now) > 0 {
			short, starved = true, starved || m.starved
		}
	}
	u.asked = u.asked || short
	return short && !starved
}

// reservation returns a reservation that says what is left.
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

// leastCost is the minimum demand of every request, in cost units: even a request of unknown cost must not pass
// when nothing is left.
const leastCost = 1e-3

// short returns how long to wait until the demand can be met; 0 means now, or that nothing is demanded.
func (m *meter) short(asked float64, now time.Time) time.Duration {
	if asked == 0 {
		return 0
	}
	return m.wait(asked, now)
}

// crowded refuses a request if the tenant has the maximum number in flight.
func (u *usage) crowded() error {
	if u.concurrency > 0 && u.running >= u.concurrency {
		return errs.New(errs.TenantConcurrency, "tenant '%s' has %d requests in flight, as many as it may", u.name, u.running)
	}
	return nil
}

// refusal returns why a request with this demand of each bound is refused, or nil.
func (u *usage) refusal(asked func(*meter) float64, now time.Time) error {
	for i := range u.meters {
		m := &u.meters[i]
		if wait := m.short(asked(m), now); wait > 0 {
			return errs.New(errs.QuotaExceeded, "tenant '%s' has used its %s", u.name, m.String()).WithRetry(wait)
		}
	}
	return nil
}

// A tenant starts with retriesAtFirst retries and can accumulate up to retriesSaved.
const (
	retriesAtFirst = 10
	retriesSaved   = 100
)

// retry takes a retry from those that other requests have earned, or refuses it. Envoy and gRPC use this method
// to keep retries from multiplying an overload.
func (u *usage) retry(again bool, budget float64) error {
	if budget < 0 {
		return nil
	}
	if !u.seen {
		u.seen, u.retries = true, retriesAtFirst
	}
	if !again {
		u.retries = min(u.retries+budget, retriesSaved)
		return nil
	}
	if u.retries < 1 {
		return errs.New(errs.RetryBudget, "tenant '%s' sends more retries than %.0f%% of its requests", u.name, 100*budget)
	}
	u.retries--
	return nil
}

// Settle ends a reservation with the request's actual cost, in cost units.
func (r *Reservation) Settle(cost float64) {
	if r.tenant == nil {
		return
	}
	u := r.tenant.usage
	r.tenant = nil
	u.mu.Lock()
	defer u.mu.Unlock()
	u.running--
	for i := range u.meters {
		if m := &u.meters[i]; m.kind == costUnits {
			m.take(cost - r.cost)
		}
	}
}
