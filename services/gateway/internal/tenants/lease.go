package tenants

import (
	"context"
	"maps"
	"slices"
	"time"
)

// Share has limits be shared with other gateways: what may be used of them comes by
// [Tenants.Lease] alone. It is called before the first policy. What it returns has something
// when a request waits for a lease.
func (t *Tenants) Share() (short <-chan struct{}) {
	t.leased.Store(true)
	return t.short
}

// Balance is what a gateway wants of a bound that it shares with others.
type Balance struct {
	Bound
	// Wants is how much more it needs; less than nothing is what it gives back.
	Wants float64
	// Owed is what it has used without a lease.
	Owed float64
}

// Grant is what a lease gives of a balance.
type Grant struct {
	// Amount is how much the gateway gets, or has given back where it is less than nothing.
	Amount float64
	// Left is what is left for all gateways after it.
	Left float64
}

// Lease exchanges what this gateway, one of so many, has of the tenants' bounds for what it
// needs next. It calls settle with the balances of each tenant that was in use lately, and
// settle returns a grant for each. Where settle fails, the gateway has its own part: of what
// time has given since the last round, and of a window what was left for all at the last
// lease, divided by the gateways. With no gateways, as when this one stops, it gives back
// what it has.
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

// awaitLease asks for a lease, and waits until there was one.
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

// inUse are the tenants that there may be something to settle for.
func (t *Tenants) inUse() []*usage {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.usages))
}

// wanted are the balances of a tenant; none where it was not in use since the last time and
// has no more than it may retain.
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

// grant adds what a lease has given.
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

// grantWithout adds what the gateway has without a lease.
func (u *usage) grantWithout(wanted []Balance, gateways int, since time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := range wanted {
		if m := u.meter(&wanted[i].Bound); m != nil {
			m.add(m.without(wanted[i].Wants, gateways, since), wanted[i].Wants)
		}
	}
}

// meter returns the meter of a bound; nil where the policy has it no more.
func (u *usage) meter(of *Bound) *meter {
	name := of.Name()
	for i := range u.meters {
		if u.meters[i].Name() == name {
			return &u.meters[i]
		}
	}
	return nil
}

// add adds what was granted of what was wanted.
func (m *meter) add(n, wanted float64) {
	m.Left += n
	m.spent = 0
	m.starved = n < wanted-1e-6*m.burst
}

// Take is how much of a balance a level of all gateways covers. It is taken off the level.
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
