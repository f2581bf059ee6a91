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

// usage is what a tenant has used lately and is using. It outlives policies.
type usage struct {
	name    string
	element *list.Element // in the recent tenants; nil for one that the policy lists; guarded by Tenants.mu

	mu          sync.Mutex
	generation  uint64 // of the policy that the limits are of
	concurrency int    // at most; 0 is no bound
	meters      []meter
	retries     float64 // that other requests have made up for
	seen        bool    // whether it is
	running     int
	asked       bool // for more than there is, since the last lease
	memory      *memory.Budget
	share       int64 // of memory, in bytes; 0 for the usual one
}

// usualShare is the part of all memory that a tenant may hold which has no bound of its
// own: another one's calls find the rest.
const usualShare = 0.75

// Memory returns the budget of the tenant's calls, which is a part of the budget of all.
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

// configure sets the limits of a policy, unless those of it or of a later one are set. What
// was used counts on.
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

// Demand is what a request that has been read asks of its tenant's limits.
type Demand struct {
	// Cost is what the request is expected to cost, in cost units.
	Cost float64
	// Bytes are those of its tensors.
	Bytes float64
}

// Reservation is what a request holds of its tenant's limits until it is settled. The
// zero Reservation is of a request without a tenant.
type Reservation struct {
	tenant *Tenant
	cost   float64
	// Limit, Left and Reset are the tenant's bound of requests, how many are left of it
	// and when there are as many as can be; a Limit of 0 is no bound.
	Limit, Left int64
	Reset       time.Duration
	// Window is for how long Limit is.
	Window time.Duration
}

// Cost is what was reserved, in cost units.
func (r *Reservation) Cost() float64 { return r.cost }

// Enter counts a request that has not been read among those of its tenant in flight, until
// it is settled, or refuses it: nothing is taken then. retry says that the request was
// sent before. The reasons are tenant_concurrency, quota_exceeded and retry_budget. Where
// limits are shared and the other gateways may have more of them, it waits for that for a
// moment.
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

// Price takes what the request is expected to use, or refuses it: then it does not count
// among the tenant's requests either. The reason is quota_exceeded.
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

// takeRequests takes n requests from the bounds of requests.
func (u *usage) takeRequests(n float64) {
	for i := range u.meters {
		if m := &u.meters[i]; m.kind == requests {
			m.take(n)
		}
	}
}

// leaseHelps reports whether what is asked for is not here, and may be with what all
// gateways share.
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

// reservation says what is left.
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

// short is how long to wait until as much as is asked for is there; 0 where it is, or
// where nothing is asked for.
func (m *meter) short(asked float64, now time.Time) time.Duration {
	if asked == 0 {
		return 0
	}
	return m.wait(asked, now)
}

// crowded refuses a request beside as many as the tenant may have in flight.
func (u *usage) crowded() error {
	if u.concurrency > 0 && u.running >= u.concurrency {
		return errs.New(errs.TenantConcurrency, "tenant '%s' has %d requests in flight, as many as it may", u.name, u.running)
	}
	return nil
}

// refusal is why a request is refused that asks so much of each bound; nil where it is not.
func (u *usage) refusal(asked func(*meter) float64, now time.Time) error {
	for i := range u.meters {
		m := &u.meters[i]
		if wait := m.short(asked(m), now); wait > 0 {
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

// Settle ends a reservation with what the request has cost, in cost units.
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
