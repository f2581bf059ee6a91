package core

import (
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
)

// queue is what waits for a model, by priority level, each level with its queue
// policy. Items go by level, within a level those that have not timed out
// before those that have, and then by arrival. Tenants' shares will stand
// between level and arrival.
type queue struct {
	levels   []level // by priority, the highest (1) first
	standard int     // index of the level for requests without a valid one
	largest  int64   // no fewer bytes than any item has
	load
}

// load is how much waits, for a model or in all.
type load struct {
	requests int
	bytes    int64
}

// add counts an item, or takes it off for a sign of -1.
func (l *load) add(it *Item, sign int) {
	l.requests += sign
	l.bytes += int64(sign) * it.Bytes
}

// level is one priority level.
type level struct {
	policy  modelconfig.QueuePolicy
	fresh   list
	behind  list // timed out under a policy that only delays
	waiting [maxShapes]tally
}

// tally is what waits of one shape.
type tally struct{ items, size int64 }

// newQueue makes the queue that a configuration asks for; without one it has one
// level and neither bounds nor timeouts.
func newQueue(c *modelconfig.DynamicBatching) *queue {
	if c == nil {
		return &queue{levels: make([]level, 1)}
	}
	q := &queue{levels: make([]level, max(c.PriorityLevels, 1))}
	if c.DefaultPriority > 0 {
		q.standard = int(c.DefaultPriority) - 1
	}
	for i := range q.levels {
		q.levels[i].policy = c.DefaultPolicy
		if own, ok := c.Policies[uint64(i)+1]; ok {
			q.levels[i].policy = own
		}
	}
	return q
}

// push takes an item in unless its level is full, and sets its timeouts. A
// client's own timeout counts only where the policy allows it and has a longer
// one.
func (q *queue) push(it *Item) errs.Reason {
	it.level = q.levelOf(it)
	l := &q.levels[it.level]
	if limit := int(l.policy.MaxQueueSize); limit > 0 && l.fresh.n+l.behind.n >= limit {
		return errs.MaxQueueSize
	}
	limit := time.Duration(l.policy.DefaultTimeoutMicros) * time.Microsecond
	if own := it.Request.Timeout; l.policy.AllowTimeoutOverride && own > 0 && own < limit {
		limit = own
	}
	it.timeout, it.behindAt = 0, 0
	switch {
	case limit == 0:
	case l.policy.Delay:
		it.behindAt = it.Enqueued.Add(limit)
	default:
		it.timeout = it.Enqueued.Add(limit)
	}
	l.fresh.push(it)
	l.count(it, 1)
	q.add(it, 1)
	q.largest = max(q.largest, it.Bytes)
	return ""
}

func (l *level) count(it *Item, sign int64) {
	t := &l.waiting[it.shape.index]
	t.items += sign
	t.size += sign * it.BatchSize
}

func (q *queue) remove(it *Item) {
	if it.links[ofQueue].in == nil {
		return
	}
	l := &q.levels[it.level]
	l.fresh.remove(it)
	l.behind.remove(it)
	l.count(it, -1)
	q.add(it, -1)
	if q.requests == 0 {
		q.largest = 0
	}
}

func (q *queue) levelOf(it *Item) int {
	if p := it.Request.Priority; p >= 1 && p <= uint64(len(q.levels)) {
		return int(p) - 1
	}
	return q.standard
}

// before is what of a shape goes before a new item: that of its level and of the
// ones above.
func (q *queue) before(it *Item, index int) (t tally) {
	for i := range q.levelOf(it) + 1 {
		one := &q.levels[i].waiting[index]
		t.items, t.size = t.items+one.items, t.size+one.size
	}
	return t
}

// last returns the item that would go last, or nil.
func (q *queue) last() *Item {
	for i := len(q.levels) - 1; i >= 0; i-- {
		l := &q.levels[i]
		if l.behind.tail != nil {
			return l.behind.tail
		}
		if l.fresh.tail != nil {
			return l.fresh.tail
		}
	}
	return nil
}

// oldest is when the first of the items came; 0 if none waits. Those that have
// timed out are in the order in which they did: where clients set timeouts of
// their own, their first need not be the oldest.
func (q *queue) oldest() (first mono.Time) {
	for i := range q.levels {
		first = mono.Earliest(first, mono.Earliest(q.levels[i].fresh.oldest(), q.levels[i].behind.oldest()))
	}
	return first
}

// first returns the item whose turn it is, or nil.
func (q *queue) first(now mono.Time) *Item { return q.from(now, 0) }

// next returns the item after it.
func (q *queue) next(now mono.Time, it *Item) *Item {
	l, k := &q.levels[it.level], &it.links[ofQueue]
	if k.in == &l.behind {
		if k.next != nil {
			return k.next
		}
		return q.from(now, it.level+1)
	}
	if next := l.freshFrom(now, k.next); next != nil {
		return next
	}
	if l.behind.head != nil {
		return l.behind.head
	}
	return q.from(now, it.level+1)
}

// from returns the first item of a level or of those below it.
func (q *queue) from(now mono.Time, index int) *Item {
	for ; index < len(q.levels); index++ {
		l := &q.levels[index]
		if it := l.freshFrom(now, l.fresh.head); it != nil {
			return it
		}
		if l.behind.head != nil {
			return l.behind.head
		}
	}
	return nil
}

// freshFrom returns the first item from it on that has not timed out, and moves
// those that have behind.
func (l *level) freshFrom(now mono.Time, it *Item) *Item {
	for it != nil && it.behindAt != 0 && it.behindAt <= now {
		next := it.links[ofQueue].next
		l.fresh.remove(it)
		l.behind.push(it)
		it = next
	}
	return it
}
