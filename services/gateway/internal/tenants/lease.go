package tenants

import (
	"context"
	"maps"
	"slices"
	"time"
)

// Share makes this gateway share limits with other gateways: it may then use only what [Tenants.Lease] grants.
// Call it before the first policy is set. The channel it returns receives a signal when a request waits for a
// lease.
func (t *Tenants) Share() (short <-chan struct{}) {
	t.leased.Store(true)
	return t.short
}

// Balance is what a gateway wants of a bound that it shares with other gateways.
type Balance struct {
	Bound
	// Wants is how much more it needs; a negative amount is returned.
	Wants float64
	// Owed is how much it has used without a lease.
	Owed float64
}

// Grant is what a lease grants for a balance.
type Grant struct {
	// Amount is how much the gateway gets; a negative amount has been returned.
	Amount float64
	// Left is what is then left for all gateways.
	Left float64
}

// Lease exchanges what this gateway, one of gateways, holds of the tenants' bounds for what it needs next. It
// calls settle with the balances of each tenant that was in use recently, and settle returns a grant for each.
// If settle fails, the gateway grants itself its share: one n-th, for n gateways, of the refill since the last
// round or, of a window, of what was left for all at the last lease. With no gateways, which means that this
// one stops, it returns what it holds.
func (t *Tenants) Lease(gateways int, since time.Duration, settle func(tenant string, wanted []Balance) ([]Grant, error)) error {
	var failed error
	for _, u := range t.inUse() {
		wanted := u.wanted(gateways, t.now())
		if len(wanted) == 0 {
			continue
		}
		granted, err := settle(u.name, wanted)
		if err != nil {
			failed = err
			u.grantWithout(wanted, gateways, since)
			continue
		}
		u.grant(wanted, granted)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.leases)
	t.leases = make(chan struct{})
	return failed
}

// maxLeaseWait bounds how long a request waits for a lease.
const maxLeaseWait = 50 * time.Millisecond

// awaitLease requests a lease and waits for the next one.
func (t *Tenants) awaitLease(ctx context.Context) {
	t.mu.Lock()
	next := t.leases
	t.mu.Unlock()
	select {
	case t.short <- struct{}{}:
	default:
	}
	late := time.NewTimer(maxLeaseWait)
	defer late.Stop()
	select {
	case <-next:
	case <-late.C:
	case <-ctx.Done():
	}
}

// inUse returns the tenants that may need a lease.
func (t *Tenants) inUse() []*usage {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.usages))
}

// wanted returns the balances of a tenant, or none if it was not in use since the last round and holds no more
// than it may retain.
func (u *usage) wanted(gateways int, now time.Time) (list []Balance) {
	u.mu.Lock()
	defer u.mu.Unlock()
	moved := u.asked
	u.asked = false
	for i := range u.meters {
		m := &u.meters[i]
		m.fill(now)
		b := Balance{m.Bound, m.wants(gateways), m.owed}
		moved = moved || m.spent != 0 || m.owed != 0 || b.Wants < -1e-6*m.burst
		list = append(list, b)
	}
	if !moved {
		return nil
	}
	return list
}

// grant adds what a lease granted.
func (u *usage) grant(wanted []Balance, granted []Grant) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := range wanted {
		if m := u.meter(&wanted[i].Bound); m != nil {
			m.owed, m.known, m.alone = 0, granted[i].Left, 0
			m.add(granted[i].Amount, wanted[i].Wants)
		}
	}
}

// grantWithout adds what the gateway grants itself without a lease.
func (u *usage) grantWithout(wanted []Balance, gateways int, since time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := range wanted {
		if m := u.meter(&wanted[i].Bound); m != nil {
			m.add(m.without(wanted[i].Wants, gateways, since), wanted[i].Wants)
		}
	}
}

// meter returns the meter of a bound, or nil if the policy no longer has it.
func (u *usage) meter(of *Bound) *meter {
	name := of.Name()
	for i := range u.meters {
		if u.meters[i].Name() == name {
			return &u.meters[i]
		}
	}
	return nil
}

// add adds the amount n that was granted of the amount wanted.
func (m *meter) add(n, wanted float64) {
	m.Left += n
	m.spent = 0
	m.starved = n < wanted-1e-6*m.burst
}

// Take withdraws from the level of all gateways what it covers of a balance.
func (b *Balance) Take(of *Level, now time.Time) Grant {
	b.Fill(of, now)
	of.Left -= b.Owed
	n := b.Wants
	if n > 0 {
		n = min(n, max(of.Left, 0))
	}
	of.Left = min(of.Left-n, b.burst)
	return Grant{Amount: n, Left: of.Left}
}
