package tenants

import (
	"fmt"
	"math"
	"time"

	"github.com/nereid-serving/nereid/libs/policy"
)

// kind is what a meter counts.
type kind uint8

const (
	requests kind = iota
	costUnits
	bytes
)

func (k kind) String() string { return [...]string{"requests", "cost_units", "bytes"}[k] }

// noun returns the kind's name for use in sentences.
func (k kind) noun() string { return [...]string{"requests", "cost units", "bytes"}[k] }

// Bound is one limit of a tenant: a rate per second whose unused part accumulates up to a burst, or an amount
// per window of time.
type Bound struct {
	kind  kind
	rate  float64 // per second; 0 for a window
	burst float64 // the maximum; for a window the whole amount
	per   time.Duration
}

// bounds are the limits and budgets of a tenant.
func bounds(of *policy.Tenant) (list []Bound) {
	l := &of.Limits
	add := func(k kind, rate, burst float64) {
		if rate > 0 {
			list = append(list, Bound{kind: k, rate: rate, burst: burst})
		}
	}
	seconds := l.Burst.Seconds()
	add(requests, l.Requests, max(l.Requests*seconds, 1))
	add(costUnits, l.CostUnits, l.CostUnits*seconds)
	add(bytes, l.Bytes, l.Bytes*seconds)
	for _, b := range of.Budgets {
		if b.Requests > 0 {
			list = append(list, Bound{kind: requests, burst: b.Requests, per: b.Per})
		}
		if b.CostUnits > 0 {
			list = append(list, Bound{kind: costUnits, burst: b.CostUnits, per: b.Per})
		}
	}
	return list
}

// Name identifies the bound among a tenant's bounds.
func (b *Bound) Name() string {
	if b.per == 0 {
		return b.kind.String()
	}
	return b.kind.String() + "/" + b.per.String()
}

// String describes the bound in text for people.
func (b *Bound) String() string {
	if b.per == 0 {
		return fmt.Sprintf("%v %s per second", b.rate, b.kind.noun())
	}
	return fmt.Sprintf("%v %s per %s", b.burst, b.kind.noun(), b.per)
}

// Level is what was left of a bound at a point in time; for a window, At is the window's start. Left may be
// negative, since a request's cost is known only at its end.
type Level struct {
	Left float64
	At   time.Time
}

// Full returns the level of an unused bound.
func (b *Bound) Full(now time.Time) Level {
	l := Level{Left: b.burst, At: now}
	if b.per > 0 {
		l.At = now.Truncate(b.per)
	}
	return l
}

// Fill adds the refill since the level's time.
func (b *Bound) Fill(l *Level, now time.Time) {
	if b.per > 0 {
		if since := now.Truncate(b.per); since.After(l.At) {
			*l = b.Full(now)
		}
		return
	}
	if d := now.Sub(l.At); d > 0 {
		l.Left, l.At = min(l.Left+b.rate*d.Seconds(), b.burst), now
	}
}

// Whole returns the time until the bound is full again.
func (b *Bound) Whole(l Level, now time.Time) time.Duration {
	if b.per > 0 {
		return now.Truncate(b.per).Add(b.per).Sub(now)
	}
	return time.Duration(math.Min(max(b.burst-l.Left, 0)/b.rate, 1e9) * float64(time.Second))
}

// meter is a bound and what is left of it for this gateway.
type meter struct {
	Bound
	Level
	leased bool    // Left is this gateway's part of a shared bound, granted by leases
	spent  float64 // since the last lease
	owed   float64 // used without a lease
	// known is what was left for all gateways after the last lease in this window, and alone is how much this
	// gateway has granted itself since.
	known, alone float64
	// starved says that the last lease granted less than was wanted: the gateways together have no more.
	starved bool
}

// fill adds the refill since the meter's time, unless the bound is leased: then a new window starts empty here,
// and all of it is available to leases.
func (m *meter) fill(now time.Time) {
	switch {
	case !m.leased:
		m.Fill(&m.Level, now)
	case m.per > 0 && now.Truncate(m.per).After(m.At):
		m.Level, m.owed, m.known, m.alone, m.starved = Level{At: now.Truncate(m.per)}, 0, m.burst, 0, false
	}
}

// without returns how much of what the meter wants the gateway grants itself without a lease for the time since
// the last round: its share of the refill or, for a window, of what was left for all. The gateway owes that
// amount to the shared level, which refills meanwhile. For a rate it owes at most its share of a burst, since
// the level grows by no more.
func (m *meter) without(wants float64, gateways int, since time.Duration) float64 {
	parts := float64(max(gateways, 1))
	if m.per == 0 {
		n := min(max(wants, 0), m.rate*since.Seconds()/parts)
		m.owed = max(m.owed, min(m.owed+n, m.burst/parts))
		return n
	}
	n := max(min(wants, m.known/parts-m.alone), 0)
	m.alone += n
	m.owed += n
	return n
}

// wait returns how long to wait before n may be taken; 0 means now. More than the burst may be taken when the
// bound is full, since otherwise it never could be.
func (m *meter) wait(n float64, now time.Time) time.Duration {
	m.fill(now)
	missing := min(n, m.burst) - m.Left
	switch {
	case missing <= 1e-9:
		return 0
	case m.per > 0:
		return now.Truncate(m.per).Add(m.per).Sub(now)
	}
	return time.Duration(math.Min(missing/m.rate, 1e6) * float64(time.Second))
}

// take takes n; a negative n is returned.
func (m *meter) take(n float64) {
	m.Left = min(m.Left-n, m.burst)
	m.spent += n
}

// A lease covers leaseRounds times what was used in the last round, and at least half of the gateway's share of
// a burst. Before the first lease, the fraction leastLease of a burst is available.
const (
	leaseRounds = 2
	leastLease  = 0.02
)

// wants returns how much more the meter needs until after the next round, at one of gateways; a negative amount
// is returned. With no gateways it returns everything.
func (m *meter) wants(gateways int) float64 {
	if gateways == 0 {
		return min(-m.Left, 0)
	}
	return max(leaseRounds*m.spent, m.burst/float64(2*max(gateways, 1)), 1) - m.Left
}
