package tenants

import (
	"context"
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

// Lease exchanges what this gateway has of the tenants' bounds for what it needs next:
// settle is called with each tenant that has been in use lately, and returns how much of
// each balance is granted. On an error nothing is: then the gateway's own part of what time
// gives is, where it is one of so many. One that stops is one of none, and gives back what it has.
func (t *Tenants) Lease(gateways int, since time.Duration, settle func(tenant string, wanted []Balance) ([]float64, error)) error {
	var failed error
	for _, u := range t.inUse() {
		wanted := u.wanted(gateways)
		if len(wanted) == 0 {
			continue
		}
		granted, err := settle(u.name, wanted)
		if err != nil {
			failed = err
			granted = make([]float64, len(wanted))
			for i := range wanted {
				granted[i] = min(max(wanted[i].Wants, 0), wanted[i].rate*since.Seconds()/float64(max(gateways, 1)))
			}
		}
		u.grant(wanted, granted, err == nil)
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

// inUse are the tenants that there is something to settle for, at most.
func (t *Tenants) inUse() (list []*usage) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for e := t.recent.Front(); e != nil; e = e.Next() {
		list = append(list, e.Value.(*usage)) //nolint:forcetypeassert // of usages alone
	}
	return list
}

// wanted are the balances of a tenant; none where it was not in use since the last time and
// has no more than it may keep.
func (u *usage) wanted(gateways int) (list []Balance) {
	u.mu.Lock()
	defer u.mu.Unlock()
	moved := u.asked
	u.asked = false
	for i := range u.meters {
		m := &u.meters[i]
		b := Balance{m.Bound, m.wants(gateways), m.owed}
		moved = moved || m.spent != 0 || m.owed != 0 || b.Wants < -1e-6*m.burst
		list = append(list, b)
	}
	if !moved {
		return nil
	}
	return list
}

// grant takes in what was granted of the balances, by a lease or without one.
func (u *usage) grant(wanted []Balance, granted []float64, leased bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := range wanted {
		for j := range u.meters {
			if m := &u.meters[j]; m.Name() == wanted[i].Name() {
				m.Left += granted[i]
				m.spent = 0
				if m.owed += granted[i]; leased {
					m.owed = 0
				}
				m.starved = granted[i] < wanted[i].Wants-1e-6*m.burst
			}
		}
	}
}

// Grant is how much of a balance a level of all gateways covers. It is taken off the level.
func (b *Balance) Grant(of *Level, now time.Time) float64 {
	b.Fill(of, now)
	of.Left -= b.Owed
	n := b.Wants
	if n > 0 {
		n = min(n, max(of.Left, 0))
	}
	of.Left = min(of.Left-n, b.burst)
	return n
}
