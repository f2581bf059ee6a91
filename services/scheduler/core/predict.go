package core

import (
	"math"
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
)

// admit queues an item unless there is a reason not to.
func (c *Core) admit(m *model, it *Item) (errs.Reason, time.Duration) {
	switch {
	case m == nil:
		return errs.ModelNotReady, 0
	case len(m.instances) == 0 && !c.awaitFirst(m) && c.now >= c.grace:
		return errs.NoWorker, 0
	case !it.doneBy(c.now):
		return errs.DeadlineQueue, 0
	case m.proposal.Reason == WaitMemory && m.queue.bytes+it.Bytes > m.memory():
		return errs.MemoryPressure, 0
	}
	end := m.predict(c.now, it)
	if it.Deadline != 0 {
		it.Predicted = end
	}
	if !it.doneBy(end) {
		alone := m.doneAlone(c.now, it)
		switch {
		case m.mayProbe(c.now, alone):
			it.probe = true
		case alone:
			return errs.DeadlineUnmeetable, end.Sub(it.Deadline)
		default:
			return errs.DeadlineTooShort, 0
		}
	}
	return c.join(m, it), 0
}

// memory is how many bytes may wait while memory is waited for: as many as the batches
// of one of the model's workers may have.
func (m *model) memory() (most int64) {
	for _, in := range m.instances {
		most = max(most, in.worker.memory)
	}
	return most
}

// predict is when an item that comes now would hardly not be done: after the
// running batches and those that go before its own, shared between the
// instances. What deviates in batches that follow each other partly evens out:
// the deviation of their sum grows with the root of their number. Instances that are
// away count as if they were not there.
func (m *model) predict(now mono.Time, it *Item) mono.Time {
	there := 0
	for _, in := range m.instances {
		if !in.away() {
			there++
		}
	}
	if it.Deadline == 0 || there == 0 || m.batcher == nil {
		return now
	}
	if m.variable {
		it.shape = m.shapes.of(m.rowElements(it.Request))
	}
	ahead, variance, own := 0.0, 0.0, it.BatchSize // seconds, and their square
	for i := range max(len(m.shapes), 1) {
		t, same := m.queue.before(it, i), i == int(it.shape.index)
		if t.items == 0 && !same {
			continue
		}
		batches, size, joined := m.batcher.Backlog(it, t, same)
		if same {
			own = joined
		}
		rate, deviation := 0.0, 0.0 // batches per second, by all instances; seconds
		for _, in := range m.instances {
			if in.away() {
				continue
			}
			mean, dev := in.costs.of(size, shape{index: uint8(i)})
			rate += 1 / (mean + in.way) // an instance of unknown costs takes any number of batches
			deviation = max(deviation, dev)
		}
		ahead += float64(batches) / rate
		variance += deviation * deviation * float64(batches) / float64(there)
	}
	end := mono.Time(math.MaxInt64)
	for _, in := range m.instances {
		if in.away() {
			continue
		}
		end = min(end, in.freeAt(now).Add(in.takes(own, it.shape)))
	}
	return end.Add(seconds(ahead + 2*math.Sqrt(variance)))
}

// probeAfter is how long a model is idle before a request is let in that by the
// costs could not be done in time: else a few slow executions would have
// everything refused for ever.
const probeAfter = time.Second

// doneAlone reports whether an instance that begins the item now, and runs nothing
// else, would finish it by its deadline, by the mean of its costs. If none would, the
// deadline is too short whatever the load is, and a later attempt fares no better.
func (m *model) doneAlone(now mono.Time, it *Item) bool {
	return slices.ContainsFunc(m.instances, func(in *instance) bool { return it.doneBy(now.Add(in.costs.mean(it.BatchSize, it.shape))) })
}

// mayProbe reports whether an item that the estimate speaks against is admitted all
// the same. An idle model admits an item that would be done alone: it is likely to
// be in time, nothing else wants the instances, and only executions correct an
// estimate that is too high. A model that has been idle for long admits any item.
func (m *model) mayProbe(now mono.Time, alone bool) bool {
	busy := slices.ContainsFunc(m.instances, func(in *instance) bool { return in.running > 0 })
	if busy || m.queue.requests > 0 {
		return false
	}
	return alone || now.Sub(m.lastEnd) >= probeAfter
}

// makeRoom keeps the pool's limits when an item has joined what waits for m.
// Beyond them the model that has most waiting gives up what would go last, so
// that a flood of requests to one model does not shut out the others. It reports
// false if that model is m, and so the item has no room.
//
// Under a policy it is the tenant of which most waits that gives up what would go last.
func (c *Core) makeRoom(m *model, it *Item) bool {
	for c.config.MaxRequests > 0 && c.waiting.requests >= c.config.MaxRequests {
		if !c.displace(m, it, func(l *load) int64 { return int64(l.requests) }) {
			return false
		}
	}
	for c.config.MaxBytes > 0 && c.waiting.requests > 0 && c.waiting.bytes+it.Bytes > c.config.MaxBytes {
		if !c.displace(m, it, func(l *load) int64 { return l.bytes }) {
			return false
		}
	}
	return true
}

// displace ends the last item of the model of the greatest size if that is not
// m, which has its new item already.
func (c *Core) displace(m *model, it *Item, sizeOf func(*load) int64) bool {
	if c.shares.policed() {
		return c.displaceOf(c.shares.overloader(it, sizeOf), errs.QueueFull)
	}
	most, size := m, sizeOf(&m.queue.load)
	for _, other := range c.models {
		if n := sizeOf(&other.queue.load); other != m && (n > size || n == size && most != m && other.ref.Compare(most.ref) < 0) {
			most, size = other, n
		}
	}
	if most == m {
		return false
	}
	c.end(most.queue.last(), Refuse, errs.QueueFull, 0)
	c.touch(most)
	return true
}

// displaceOf ends the last item of a flow, if there is one.
func (c *Core) displaceOf(f *flow, reason errs.Reason) bool {
	if f == nil {
		return false
	}
	last := f.last()
	m := last.model
	c.end(last, Refuse, reason, 0)
	c.touch(m)
	return true
}

// makeRoomInLevel has the last item of a model's full queue give way to a new one of a
// higher band, or of a tenant of which less waits for its weight.
func (c *Core) makeRoomInLevel(m *model, it *Item) {
	if it.Request.Share == (infer.Share{}) || !m.queue.full(it) {
		return
	}
	last := m.queue.last()
	if last.level != m.queue.levelOf(it) || last.band.number < it.Request.Share.Band {
		return
	}
	rows := it.BatchSize
	for _, f := range m.queue.flows {
		if f.band == last.band && f.tenant.name == it.Request.Tenant {
			rows += f.size
		}
	}
	weight := weightOf(it.Request.Share)
	if last.band.number > it.Request.Share.Band || last.tenant.name != it.Request.Tenant && float64(last.flow.size)/last.tenant.weight > float64(rows)/weight {
		c.displaceOf(last.flow, errs.MaxQueueSize)
	}
}
