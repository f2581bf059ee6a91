package core

import (
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
)

// queue is a model's waiting items by priority level, each level with its
// queue policy. Items go by level, within a level those that have not timed
// out before those that have, and then by arrival.
type queue struct {
	levels   []level // by priority, the highest (1) first
	standard int     // index of the level for requests without a valid one
	n        int
}

// level is one priority level.
type level struct {
	policy modelconfig.QueuePolicy
	fresh  list
	late   list // timed out under a policy that only delays
	rows   int64
}

func newQueue(c *modelconfig.DynamicBatching) queue {
	q := queue{levels: make([]level, max(c.PriorityLevels, 1))}
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

// push takes an item in unless its level is full.
func (q *queue) push(it *Item) errs.Reason {
	it.level = q.levelOf(it)
	l := &q.levels[it.level]
	if limit := int(l.policy.MaxQueueSize); limit > 0 && l.fresh.n+l.late.n >= limit {
		return errs.MaxQueueSize
	}
	l.setTimeout(it)
	l.fresh.push(it)
	l.rows += it.Rows
	q.n++
	return ""
}

// rowsBefore is how many rows go before a new item: those of its level and of
// the ones above.
func (q *queue) rowsBefore(it *Item) (rows int64) {
	for i := range q.levelOf(it) + 1 {
		rows += q.levels[i].rows
	}
	return rows
}

func (q *queue) levelOf(it *Item) int {
	if p := it.Request.Priority; p >= 1 && p <= uint64(len(q.levels)) {
		return int(p) - 1
	}
	return q.standard
}

// setTimeout works out when the policy gives the item up, or delays it. A
// client's own timeout counts only where the policy allows it and has a longer
// one.
func (l *level) setTimeout(it *Item) {
	limit := time.Duration(l.policy.DefaultTimeoutMicros) * time.Microsecond
	if own := it.Request.Timeout; l.policy.AllowTimeoutOverride && own > 0 && own < limit {
		limit = own
	}
	switch {
	case limit == 0:
	case l.policy.Delay:
		it.lateAt = it.Enqueued.Add(limit)
	default:
		it.timeout = it.Enqueued.Add(limit)
	}
}

func (q *queue) remove(it *Item) {
	l := &q.levels[it.level]
	l.fresh.remove(it)
	l.late.remove(it)
	l.rows -= it.Rows
	q.n--
}

// last returns the item that would go last, or nil.
func (q *queue) last() *Item {
	for i := len(q.levels) - 1; i >= 0; i-- {
		l := &q.levels[i]
		if l.late.tail != nil {
			return l.late.tail
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
		first = mono.Earliest(first, mono.Earliest(q.levels[i].fresh.oldest(), q.levels[i].late.oldest()))
	}
	return first
}

// first returns the item whose turn it is, or nil.
func (q *queue) first(now mono.Time) *Item { return q.from(now, 0) }

// next returns the item after it.
func (q *queue) next(now mono.Time, it *Item) *Item {
	l := &q.levels[it.level]
	if it.in == &l.late {
		if it.next != nil {
			return it.next
		}
		return q.from(now, it.level+1)
	}
	if next := l.freshFrom(now, it.next); next != nil {
		return next
	}
	if l.late.head != nil {
		return l.late.head
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
		if l.late.head != nil {
			return l.late.head
		}
	}
	return nil
}

// freshFrom returns the first item from it on that has not timed out, and
// moves those that have behind. Items time out when it is their turn, not
// before: nobody sees the difference.
func (l *level) freshFrom(now mono.Time, it *Item) *Item {
	for it != nil && it.lateAt != 0 && it.lateAt <= now {
		next := it.link.next
		l.fresh.remove(it)
		l.late.push(it)
		it = next
	}
	return it
}
