package core

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
)

// Idempotent is the parameter of a model's configuration that allows a request
// to run again when the worker is lost that ran it. Its value is "true".
const Idempotent = "idempotent"

// model is one loaded content of a model version: what waits for it and what
// runs it.
type model struct {
	ref       infer.ModelRef
	policy    policy
	removed   bool
	instances []*instance       // by id
	met       bool              // has had an instance in this term, or was waited for
	retiring  int               // of the instances
	costs     map[string]*costs // by device kind
	waiting   load
	repeats   bool      // its requests may run twice
	lastEnd   mono.Time // of an order
	timer     timer     // when policy.Form is worth asking again
}

// model returns the entry of ref, which a grant or a configuration makes,
// whichever comes first.
func (c *Core) model(ref infer.ModelRef) *model {
	m := c.models[ref]
	if m == nil {
		m = &model{ref: ref, policy: &hold{}, costs: make(map[string]*costs)}
		m.timer.mod = m
		c.models[ref] = m
	}
	return m
}

// unconfigured reports whether a grant has made the model known, and no
// configuration yet: then nothing of it runs. It may also have left the
// repository while its worker was out of reach.
func (m *model) unconfigured() bool {
	_, is := m.policy.(*hold)
	return is
}

// configure gives a model its policy. The content of a reference never
// changes, so that a second configuration says nothing new.
func (c *Core) configure(now mono.Time, e *Model) {
	m := c.model(e.Ref)
	m.removed = false
	early, ok := m.policy.(*hold)
	if !ok {
		return
	}
	m.policy = policyFor(e.Config)
	m.repeats = e.Config.Parameters[Idempotent] == "true"
	for it := early.head; it != nil; it = early.head {
		early.remove(it)
		c.queue(m, it)
	}
	c.schedule(now, m)
}

// queue moves an admitted item into the policy, which may not have it.
func (c *Core) queue(m *model, it *Item) {
	if reason := m.policy.Add(it); reason != "" {
		c.counts.Expired++
		c.finish(it, reason)
		return
	}
	c.timers.set(&it.timer, mono.Earliest(it.Deadline, it.timeout))
}

func (c *Core) remove(ref infer.ModelRef) {
	if m := c.models[ref]; m != nil {
		m.removed = true
		c.forgetModel(m)
	}
}

// forgetModel drops a model that is not in the repository, as far as is known,
// and has neither instances nor anything waiting.
func (c *Core) forgetModel(m *model) {
	if (m.removed || m.unconfigured()) && len(m.instances) == 0 && m.policy.Len() == 0 {
		c.timers.set(&m.timer, 0)
		delete(c.models, m.ref)
	}
}

// schedule gives idle instances of m their batches, sets the time to look
// again, and lets instances go that retire.
func (c *Core) schedule(now mono.Time, m *model) {
	wake := c.fill(now, m)
	c.timers.set(&m.timer, wake)
	c.release(now, m)
}

func (c *Core) fill(now mono.Time, m *model) (wake mono.Time) {
	for m.policy.Len() > 0 {
		in := m.idle()
		if in == nil {
			c.fillAhead(now, m)
			return 0
		}
		b := c.newBatch()
		wake = m.policy.Form(now, b, in.costs)
		c.dropLate(b)
		if len(b.Items) == 0 {
			c.free = append(c.free, b)
			return wake
		}
		c.dispatch(now, in, b)
	}
	return 0
}

// dropLate ends the items that the policy has taken out since they could not
// be done by their deadline.
func (c *Core) dropLate(b *Batch) {
	for i, it := range b.late {
		c.counts.Expired++
		c.finish(it, errs.DeadlineQueue)
		b.late[i] = nil
	}
	b.late = b.late[:0]
}

func (c *Core) dispatch(now mono.Time, in *instance, b *Batch) {
	c.lastOrder++
	b.takes = in.costs.estimate(b.Rows)
	in.busyUntil = max(in.busyUntil, now).Add(b.takes)
	in.work += b.takes
	b.instance, b.Model, b.Dispatched = in, in.model.ref, now
	b.Order.ID, b.Order.Epoch, b.Order.Instance = c.lastOrder, c.epoch, in.id
	b.Order.LatestStart = b.latestStart()
	for _, it := range b.Items {
		c.leaveQueue(it)
		c.timers.set(&it.timer, it.Deadline)
		c.begun.Add(it.Work.Request)
		it.Work.Epoch, it.Request.Work.Epoch = c.epoch, c.epoch
	}
	in.credits--
	in.running++
	c.orders[keyOf(&b.Order)] = b
	c.act(Action{Kind: Dispatch, Batch: b})
}

// stalls reports whether something waits that an instance could take without
// a time at which it will be tried. It must never be so: nothing else would
// bring the model to attention.
func (m *model) stalls() bool {
	return !m.unconfigured() && m.policy.Len() > 0 && m.idle() != nil && m.timer.pos == 0
}

// costsOn returns the model's costs on a device such as gpu:1.
func (m *model) costsOn(device string) *costs {
	kind, _, _ := strings.Cut(device, ":")
	c := m.costs[kind]
	if c == nil {
		c = new(costs)
		m.costs[kind] = c
	}
	return c
}

// idle returns the instance for the next batch: on the fastest kind of device,
// then the one with the fewest orders, then the lowest slot. A kind that has
// not been measured counts as fast, so that it is. Retiring instances come in
// only when no other is left at all, since somebody must drain the queue.
func (m *model) idle() *instance {
	drain := m.retiring == len(m.instances)
	var best *instance
	for _, in := range m.instances {
		if in.credits > in.ahead && in.retiring == drain && (best == nil || in.before(best)) {
			best = in
		}
	}
	return best
}

// before reports whether a batch goes to in rather than to other.
func (in *instance) before(other *instance) bool {
	if in.costs == other.costs {
		return in.running < other.running
	}
	a, b := in.costs.estimate(1), other.costs.estimate(1)
	return a < b || (a == b && in.running < other.running)
}

// tryAfter is how long a model is idle before a request is let in that by the
// costs could not be done in time: else a few slow executions would have
// everything refused for ever.
const tryAfter = time.Second

// mayTry reports whether an item that the estimate speaks against is let in all
// the same. An idle model takes what would be done by the mean: it is likely to
// be in time, nothing else wants the instances, and only executions correct an
// estimate that is too high. One that has been idle for long takes anything.
func (m *model) mayTry(now mono.Time, it *Item) bool {
	busy := slices.ContainsFunc(m.instances, func(in *instance) bool { return in.running > 0 })
	if busy || m.policy.Len() > 0 {
		return false
	}
	fast := slices.ContainsFunc(m.instances, func(in *instance) bool { return it.doneBy(now.Add(in.costs.mean(it.Rows))) })
	return fast || now.Sub(m.lastEnd) >= tryAfter
}

// predict is when an item that comes now would hardly not be done: after the
// running batches and those that go before its own, shared between the
// instances. What deviates in batches that follow each other partly evens out:
// the deviation of their sum grows with the root of their number.
func (m *model) predict(now mono.Time, it *Item) mono.Time {
	if it.Deadline == 0 || len(m.instances) == 0 {
		return now
	}
	batches, size, rows := m.policy.Ahead(it)
	end := mono.Time(math.MaxInt64)
	rate, deviation := 0.0, 0.0 // batches per second, by all instances; seconds
	for _, in := range m.instances {
		end = min(end, max(in.busyUntil, now).Add(in.costs.estimate(rows)))
		mean, dev := in.costs.of(size)
		rate += 1 / mean // an instance of unknown costs takes any number of batches
		deviation = max(deviation, dev)
	}
	each := float64(batches) / float64(len(m.instances))
	return end.Add(seconds(float64(batches)/rate + 2*deviation*math.Sqrt(each)))
}
