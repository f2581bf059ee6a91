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

// noun is the kind in sentences.
func (k kind) noun() string { return [...]string{"requests", "cost units", "bytes"}[k] }

// Bound is one limit of a tenant: so much a second, of which what is not used is kept up
// to a burst, or so much in a window of time.
type Bound struct {
	kind  kind
	rate  float64 // a second; 0 for a window
	burst float64 // at most; of a window all of it
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

// Name names the bound among a tenant's.
func (b *Bound) Name() string {
	if b.per == 0 {
		return b.kind.String()
	}
	return b.kind.String() + "/" + b.per.String()
}

// String writes the bound for people.
func (b *Bound) String() string {
	if b.per == 0 {
		return fmt.Sprintf("%v %s per second", b.rate, b.kind.noun())
	}
	return fmt.Sprintf("%v %s per %s", b.burst, b.kind.noun(), b.per)
}

// Level is what is left of a bound at a time; of a window the time is its begin. It may be
// less than nothing, since what a request costs is known at its end.
type Level struct {
	Left float64
	At   time.Time
}

// Full is the level of a bound of which nothing was used.
func (b *Bound) Full(now time.Time) Level {
	l := Level{Left: b.burst, At: now}
	if b.per > 0 {
		l.At = now.Truncate(b.per)
	}
	return l
}

// Fill adds what the time since has given.
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

// Whole is after what time the bound is as if nothing of it was used.
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
	leased bool    // what is left is a part of what all gateways share, and comes by leases
	spent  float64 // since the last lease
	owed   float64 // that was used without a lease
	// known is what was left for all gateways after the last lease in this window, and alone
	// how much this gateway has had since without one.
	known, alone float64
	// starved says that the last lease gave less than was wanted: the gateways together have
	// no more.
	starved bool
}

// fill adds what the time since has given, unless that comes by leases: then a new window
// starts with nothing here, and all of it is there for leases.
func (m *meter) fill(now time.Time) {
	switch {
	case !m.leased:
		m.Fill(&m.Level, now)
	case m.per > 0 && now.Truncate(m.per).After(m.At):
		m.Level, m.owed, m.known, m.alone, m.starved = Level{At: now.Truncate(m.per)}, 0, m.burst, 0, false
	}
}

// without is how much of what the meter wants it gets without a lease, since the last
// round at one of so many gateways: its part of what time has given or, of a window, of
// what was left for all. It owes that to the shared level, which time fills meanwhile. Of
// a rate it owes no more than its part of a burst, since the level grows by no more.
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

// wait is after what time n may be taken; 0 is now. More than the burst may be taken
// when nothing was used for so long, or it never could be.
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

// take takes n, or gives it back where it is less than nothing.
func (m *meter) take(n float64) {
	m.Left = min(m.Left-n, m.burst)
	m.spent += n
}

// A lease is for about so many rounds of what was used in the last one, and at least for
// half of the gateway's part of a burst. Before the first there is so much of a burst.
const (
	leaseRounds = 2
	leastLease  = 0.02
)

// wants is how much more than there is the meter needs until after the next round, at one
// of so many gateways; less than nothing is what it gives back. One that is none of them any
// more gives all back.
func (m *meter) wants(gateways int) float64 {
	if gateways == 0 {
		return min(-m.Left, 0)
	}
	return max(leaseRounds*m.spent, m.burst/float64(2*max(gateways, 1)), 1) - m.Left
}
