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

// memory returns how many bytes may wait while the model waits for memory: as many as the batches of one of its
// workers may use, taking the worker with the most.
func (m *model) memory() (most int64) {
	for _, in := range m.instances {
		most = max(most, in.worker.memory)
	}
	return most
}

// predict returns the time by which an item that arrives now is almost certainly done: after the running batches and
// the batches ahead of its own, divided among the instances. Deviations of consecutive batches partly cancel out: the
// deviation of their sum grows with the square root of their number. Unavailable instances are ignored.
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
	ahead, variance, own := 0.0, 0.0, it.BatchSize // seconds, and seconds squared
	for i := range max(len(m.shapes), 1) {
		t, same := m.queue.before(it, i), i == int(it.shape.index)
		if t.items == 0 && !same {
			continue
		}
		batches, size, joined := m.batcher.Backlog(it, t, same)
		if same {
			own = joined
		}
		rate, deviation := 0.0, 0.0 // batches per second over all instances; seconds
		for _, in := range m.instances {
			if in.away() {
				continue
			}
			mean, dev := in.costs.of(size, shape{index: uint8(i)})
			rate += 1 / (mean + in.way) // an instance of unknown cost accepts any number of batches
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

// probeAfter is how long a model must be idle before it admits a request that, according to its costs, cannot be done
// in time. Without this, a few slow executions would cause every later request to be refused forever.
const probeAfter = time.Second

// doneAlone reports whether an instance that starts the item now, and runs nothing else, would finish it by its
// deadline, by the mean of its costs. If none would, the deadline is too short at any load, and a retry would fare no
// better.
func (m *model) doneAlone(now mono.Time, it *Item) bool {
	return slices.ContainsFunc(m.instances, func(in *instance) bool { return it.doneBy(now.Add(in.costs.mean(it.BatchSize, it.shape))) })
}

// mayProbe reports whether an item is admitted although the estimate says that it will be late. An idle model admits
// an item that would be done in time alone: it is likely to be in time, nothing else needs the instances, and only
// executions correct an estimate that is too high. A model that has been idle for probeAfter admits any item.
func (m *model) mayProbe(now mono.Time, alone bool) bool {
	busy := slices.ContainsFunc(m.instances, func(in *instance) bool { return in.running > 0 })
	if busy || m.queue.requests > 0 {
		return false
	}
	return alone || now.Sub(m.lastEnd) >= probeAfter
}

// makeRoom enforces the pool's limits for an item that joins the queue of m. When a limit is exceeded, the model with
// the longest queue loses the item that would go last, so a flood of requests to one model does not starve the
// others. makeRoom returns false if that model is m: then there is no room for the item.
//
// Under a policy, the tenant with the longest queue loses the item that would go last.
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

// displace ends the last item of the largest model by sizeOf, unless that is m, whose queue includes the new item
// already.
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

// makeRoomInLevel removes the last item of a model's full queue to admit a new item of a higher band, or of a tenant
// whose queue is shorter relative to its weight.
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
