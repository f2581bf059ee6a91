package core

import (
	"time"

	"github.com/nereid-serving/nereid/libs/mono"
)

// An order ahead is one that an instance has beside those that it runs, so that
// it goes on without the way to the scheduler and back. It is a promise made
// early: it stays with its instance though another may be free before, and shares
// its fate. So it is made only where waiting would change nothing but the time.

const (
	// brief is the longest that a batch ahead may take and wait for its turn, by
	// the estimates. Longer ones gain nothing: the way is short against them.
	brief = time.Millisecond
	// overdue is for how long an instance may not have answered when it should
	// have, by the estimates, and get an order ahead. The way of the order and of
	// its completion is in it.
	overdue = 10 * time.Millisecond
)

// fillAhead gives instances of m that are busy their next batches.
func (c *Core) fillAhead(now mono.Time, m *model) {
	for m.policy.Len() > 0 {
		in := m.soonFree(now)
		if in == nil {
			return
		}
		b := c.newBatch()
		m.policy.FormAhead(now, max(in.busyUntil, now), b, in.costs)
		if len(b.Items) == 0 {
			c.free = append(c.free, b)
			return
		}
		c.dispatch(now, in, b)
	}
}

// soonFree returns the instance that will be free first of those that take an
// order ahead, or nil.
func (m *model) soonFree(now mono.Time) *instance {
	var best *instance
	for _, in := range m.instances {
		if in.takesAhead(now) && (best == nil || max(in.busyUntil, now) < max(best.busyUntil, now)) {
			best = in
		}
	}
	return best
}

// takesAhead reports whether an instance without a place for an order that runs
// has one for an order ahead, and is about to be free.
func (in *instance) takesAhead(now mono.Time) bool {
	wait := in.busyUntil.Sub(now)
	return in.credits > 0 && !in.retiring && wait <= brief && wait >= -overdue
}

// brief returns how long a batch of so many rows will hardly exceed, and whether
// that is known and short.
func (c *costs) brief(rows int64) (time.Duration, bool) {
	takes := c.estimate(rows)
	return takes, takes > 0 && takes <= brief
}

// mayGoAhead reports whether an item of a batch that would be done at end has
// nothing to expect of waiting: no later one could go before it, no policy puts
// it behind or gives it up, and it will be done in time.
func (it *Item) mayGoAhead(end mono.Time) bool {
	return it.level == 0 && it.timeout == 0 && it.lateAt == 0 && it.doneBy(end)
}
