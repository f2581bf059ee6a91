package core

import (
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/mono"
)

// Limits bound what may wait in the whole pool; beyond them requests are
// refused as queue_full. Zero is no limit.
type Limits struct {
	Requests int
	Bytes    int64
}

// load is how much waits, for a model or in all.
type load struct {
	requests int
	bytes    int64
}

// add counts an item in, or out for a sign of -1.
func (l *load) add(it *Item, sign int) {
	l.requests += sign
	l.bytes += int64(sign) * it.Bytes
}

// makeRoom keeps the pool's limits when it joins what waits for m. Beyond them
// the model that has most waiting gives up what would go last, so that a flood
// of requests to one model does not shut out the others. It reports false if
// that model is m, and so the item has no room.
func (c *Core) makeRoom(now mono.Time, m *model, it *Item) bool {
	for c.limits.Requests > 0 && c.waiting.requests >= c.limits.Requests {
		if !c.displace(now, m, int64(m.waiting.requests)+1, requestsOf) {
			return false
		}
	}
	for c.limits.Bytes > 0 && c.waiting.requests > 0 && c.waiting.bytes+it.Bytes > c.limits.Bytes {
		if !c.displace(now, m, m.waiting.bytes+it.Bytes, bytesOf) {
			return false
		}
	}
	return true
}

func requestsOf(m *model) int64 { return int64(m.waiting.requests) }
func bytesOf(m *model) int64    { return m.waiting.bytes }

// displace ends the last item of the model of the greatest size if that is
// another than m and above what m would have.
func (c *Core) displace(now mono.Time, m *model, size int64, sizeOf func(*model) int64) bool {
	most := m
	for _, other := range c.models {
		if other == m {
			continue
		}
		n := sizeOf(other)
		if n > size || (n == size && most != m && other.ref.Compare(most.ref) < 0) {
			most, size = other, n
		}
	}
	if most == m {
		return false
	}
	c.counts.Expired++
	c.giveUp(most.policy.Last(), errs.QueueFull)
	c.schedule(now, most)
	return true
}
