package core

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
)

// queue holds the waiting requests of a model. Items go by band and tenant, as [shares] decides; the items of a
// tenant by priority level, each level with its queue policy; within a level those that have not timed out before
// those that have; and then by deadline under a policy, otherwise by arrival. Without policies all items belong to
// one band and one tenant.
type queue struct {
	shares   *shares
	starts   []uint64                  // the first priority level of each queue, the highest (1) first; see levelStarts
	lowest   uint64                    // priority level
	policies []modelconfig.QueuePolicy // by queue
	levels   []int                     // items by queue
	standard int                       // queue of requests without a valid level
	flows    []*flow                   // with items, by band and then by tenant
	spare    []*flow                   // without
	common   *flow                     // of requests without a policy; nil before the first
	row      float64                   // estimated seconds of device time per row
	largest  int64                     // at least the bytes of any item
	walked   []*flow                   // reused memory of walks
	load
}

// load is how much waits, for one model or in total.
type load struct {
	requests int
	bytes    int64
}

// add adds an item, or subtracts it if sign is -1.
func (l *load) add(it *Item, sign int) {
	l.requests += sign
	l.bytes += int64(sign) * it.Bytes
}

// flow holds the waiting items of one tenant in one band for one model.
type flow struct {
	queue  *queue
	band   *band
	tenant *tenant
	levels []level
	size   int64 // rows
	load

	at      *Item   // the next of a walk
	counter float64 // the tenant's, as if everything that the walk has passed had run
}

// level is the queue of one priority level, or of several that share it.
type level struct {
	fresh   list
	behind  list // timed out under a policy that only delays
	waiting [maxShapes]tally
}

// tally counts the waiting items of one shape.
type tally struct{ items, size int64 }

// newQueue returns the queue for a configuration. Without a configuration it has one level and neither bounds nor
// timeouts.
func newQueue(s *shares, c *modelconfig.DynamicBatching) *queue {
	const unknown = 1e-3 // for rows that have not run: all rows count alike
	q := &queue{shares: s, row: unknown}
	if c == nil {
		q.starts, q.lowest = []uint64{1}, 1
		q.policies, q.levels = make([]modelconfig.QueuePolicy, 1), make([]int, 1)
		return q
	}
	q.starts, q.lowest = levelStarts(c), max(c.PriorityLevels, 1)
	q.policies, q.levels = make([]modelconfig.QueuePolicy, len(q.starts)), make([]int, len(q.starts))
	if c.DefaultPriority > 0 {
		q.standard = q.queueOf(c.DefaultPriority)
	}
	for i, level := range q.starts {
		q.policies[i] = c.DefaultPolicy
		if own, ok := c.Policies[level]; ok {
			q.policies[i] = own
		}
	}
	return q
}

// levelStarts returns the first priority level of each queue. Up to [modelconfig.MaxPriorityQueues] levels have a
// queue each. If there are more, only the most urgent levels and those that the configuration names have their own;
// the others share queues, and the less urgent the levels, the more of them share one.
func levelStarts(c *modelconfig.DynamicBatching) []uint64 {
	const exact = 256
	last := max(c.PriorityLevels, 1)
	shared := last > modelconfig.MaxPriorityQueues
	var starts []uint64
	for level := uint64(1); level <= last; {
		starts = append(starts, level)
		step := uint64(1)
		if shared && level >= exact {
			step = level / 4
		}
		if last-level < step {
			break
		}
		level += step
	}
	if !shared {
		return starts
	}
	for _, level := range slices.AppendSeq([]uint64{max(c.DefaultPriority, 1)}, maps.Keys(c.Policies)) {
		starts = append(starts, level)
		if level < last {
			starts = append(starts, level+1)
		}
	}
	slices.Sort(starts)
	return slices.Compact(starts)
}

// queueOf returns the queue of one of the model's priority levels.
func (q *queue) queueOf(level uint64) int {
	if q.lowest == uint64(len(q.starts)) {
		return int(level) - 1
	}
	at, exact := slices.BinarySearch(q.starts, level)
	if exact {
		return at
	}
	return at - 1
}

// full reports whether an item's level has as many items as its policy allows.
func (q *queue) full(it *Item) bool {
	level := q.levelOf(it)
	limit := int(q.policies[level].MaxQueueSize)
	return limit > 0 && q.levels[level] >= limit
}

// push adds an item unless its level is full, and sets its timeouts. A client's own timeout applies only if the
// policy allows it and has a longer one.
func (q *queue) push(it *Item) errs.Reason {
	it.level = q.levelOf(it)
	if q.full(it) {
		return errs.MaxQueueSize
	}
	policy := &q.policies[it.level]
	limit := time.Duration(policy.DefaultTimeoutMicros) * time.Microsecond
	if own := it.Request.Timeout; policy.AllowTimeoutOverride && own > 0 && own < limit {
		limit = own
	}
	it.timeout, it.behindAt = 0, 0
	switch {
	case limit == 0:
	case policy.Delay:
		it.behindAt = it.Enqueued.Add(limit)
	default:
		it.timeout = it.Enqueued.Add(limit)
	}
	f := q.flowOf(it)
	it.flow, it.band, it.tenant = f, f.band, f.tenant
	l := &f.levels[it.level]
	l.fresh.insert(it, l.later(it))
	q.count(it, 1)
	q.shares.enqueue(f)
	q.largest = max(q.largest, it.Bytes)
	return ""
}

// later returns the first item that goes after a new one, because its deadline is later and a policy applies. It
// returns nil if there is none.
func (l *level) later(it *Item) (next *Item) {
	if it.Request.Share == (infer.Share{}) || it.Deadline == 0 {
		return nil
	}
	for other := l.fresh.tail; other != nil && (other.Deadline == 0 || other.Deadline > it.Deadline); other = other.links[ofQueue].prev {
		next = other
	}
	return next
}

// count adds an item to the counts of its flow and queue, or subtracts it if sign is -1.
func (q *queue) count(it *Item, sign int) {
	f := it.flow
	t := &f.levels[it.level].waiting[it.shape.index]
	t.items += int64(sign)
	t.size += int64(sign) * it.BatchSize
	f.size += int64(sign) * it.BatchSize
	f.add(it, sign)
	q.add(it, sign)
	q.levels[it.level] += sign
}

// flowOf returns the flow of an item.
func (q *queue) flowOf(it *Item) *flow {
	band, tenant := q.shares.band(it.Request.Share), q.shares.tenant(it.Request)
	if band.number == 0 && tenant == q.shares.nobody {
		return q.commonFlow(band)
	}
	at, ok := q.find(band, tenant)
	if ok {
		return q.flows[at]
	}
	f := &flow{}
	if n := len(q.spare); n > 0 {
		f, q.spare = q.spare[n-1], q.spare[:n-1]
	} else {
		f.levels = make([]level, len(q.levels))
	}
	f.queue, f.band, f.tenant = q, band, tenant
	q.flows = slices.Insert(q.flows, at, f)
	tenant.flows = append(tenant.flows, f)
	return f
}

// commonFlow returns the flow of requests without a policy, which is always the first.
func (q *queue) commonFlow(b *band) *flow {
	if q.common == nil {
		q.common = &flow{queue: q, band: b, tenant: q.shares.nobody, levels: make([]level, len(q.levels))}
	}
	if q.common.requests == 0 {
		q.flows = slices.Insert(q.flows, 0, q.common)
		q.common.tenant.flows = append(q.common.tenant.flows, q.common)
	}
	return q.common
}

func (q *queue) find(b *band, t *tenant) (at int, ok bool) {
	return slices.BinarySearchFunc(q.flows, t, func(f *flow, t *tenant) int {
		return cmp.Or(cmp.Compare(f.band.number, b.number), cmp.Compare(f.tenant.name, t.name))
	})
}

func (q *queue) remove(it *Item) {
	if it.links[ofQueue].in == nil {
		return
	}
	f := it.flow
	l := &f.levels[it.level]
	l.fresh.remove(it)
	l.behind.remove(it)
	q.count(it, -1)
	q.shares.dequeue(f)
	it.flow = nil
	if q.requests == 0 {
		q.largest = 0
	}
	if f.requests == 0 {
		at, _ := q.find(f.band, f.tenant)
		q.flows = slices.Delete(q.flows, at, at+1)
		at = slices.Index(f.tenant.flows, f)
		f.tenant.flows = slices.Delete(f.tenant.flows, at, at+1)
		if f != q.common {
			q.spare = append(q.spare, f)
		}
	}
}

func (q *queue) levelOf(it *Item) int {
	if p := it.Request.Priority; p >= 1 && p <= q.lowest {
		return q.queueOf(p)
	}
	return q.standard
}

// before returns how much of a shape goes before a new item: everything in the bands above; of its own tenant, what
// waits in its level and the levels above; and of the other tenants in its band, what they receive until its turn.
func (q *queue) before(it *Item, index int) (t tally) {
	number := it.Request.Share.Band
	own := q.ownBefore(it)
	for _, f := range q.flows {
		switch {
		case f.band.number > number:
			return t
		case f.band.number == number && f.tenant.name == it.Request.Tenant:
			t.items, t.size = t.items+own[index].items, t.size+own[index].size
		case f.band.number == number:
			t.addPart(f, index, q.partBefore(it, f, own))
		default:
			t.addPart(f, index, 1)
		}
	}
	return t
}

// addPart adds the given part of a flow's items of a shape.
func (t *tally) addPart(f *flow, index int, part float64) {
	for i := range f.levels {
		one := &f.levels[i].waiting[index]
		t.items += int64(part * float64(one.items))
		t.size += int64(part * float64(one.size))
	}
}

// ownBefore returns what goes before an item from its own tenant, by shape.
func (q *queue) ownBefore(it *Item) (own [maxShapes]tally) {
	at := slices.IndexFunc(q.flows, func(f *flow) bool {
		return f.band.number == it.Request.Share.Band && f.tenant.name == it.Request.Tenant
	})
	if at < 0 {
		return own
	}
	f, last := q.flows[at], q.levelOf(it)
	for i := range last + 1 {
		for shape := range own {
			one := &f.levels[i].waiting[shape]
			own[shape].items, own[shape].size = own[shape].items+one.items, own[shape].size+one.size
		}
	}
	for after := f.levels[last].later(it); after != nil; after = after.links[ofQueue].next {
		own[after.shape.index].items--
		own[after.shape.index].size -= after.BatchSize
	}
	return own
}

// partBefore returns the part of another tenant's flow that goes before an item: until the flow's counter reaches the
// counter that the item's tenant will have once that tenant's own earlier requests have gone.
func (q *queue) partBefore(it *Item, f *flow, own [maxShapes]tally) float64 {
	rows := it.BatchSize
	for i := range own {
		rows += own[i].size
	}
	weight, counter := weightOf(it.Request.Share), q.shares.floor
	if t := q.shares.tenants[it.Request.Tenant]; t != nil {
		counter = t.counter
	}
	turn := max(counter, f.tenant.counter) + float64(rows)*q.row/weight // an upper bound, as the counter may be raised
	return min(max((turn-f.tenant.counter)*f.tenant.weight/q.row/float64(max(f.size, 1)), 0), 1)
}

// learn updates the estimated time per row with a batch of size rows that took took.
func (q *queue) learn(size int64, took time.Duration) {
	const weight = 1.0 / 8
	q.row += weight * (took.Seconds()/float64(max(size, 1)) - q.row)
}

// last returns the item that would go last, or nil.
func (q *queue) last() *Item {
	var most *flow
	for _, f := range q.flows {
		if most == nil || f.band.number > most.band.number || f.band == most.band && f.heavier(most) {
			most = f
		}
	}
	if most == nil {
		return nil
	}
	return most.last()
}

// heavier reports whether a flow's last item goes after that of another flow in the band.
func (f *flow) heavier(other *flow) bool {
	return f.tenant.counter+float64(f.size)*f.queue.row/f.tenant.weight > other.tenant.counter+float64(other.size)*other.queue.row/other.tenant.weight
}

// last returns the item of the flow that would go last.
func (f *flow) last() *Item {
	for i := len(f.levels) - 1; i >= 0; i-- {
		l := &f.levels[i]
		if l.behind.tail != nil {
			return l.behind.tail
		}
		if l.fresh.tail != nil {
			return l.fresh.tail
		}
	}
	return nil
}

// oldest returns when the oldest item arrived; 0 if none waits. Items that have timed out are ordered by their
// timeouts: where clients set timeouts of their own, the first one is not necessarily the oldest. The same is true of
// a tenant's requests that have deadlines.
func (q *queue) oldest() (first mono.Time) {
	for _, f := range q.flows {
		for i := range f.levels {
			first = mono.Earliest(first, mono.Earliest(f.levels[i].fresh.oldest(), f.levels[i].behind.oldest()))
		}
	}
	return first
}

// first returns the next item to go, or nil.
func (q *queue) first(now mono.Time) *Item {
	if len(q.flows) == 0 {
		return nil
	}
	best := q.flows[0]
	for _, f := range q.flows[1:] {
		if f.goesBefore(best, f.tenant.counter, best.tenant.counter) {
			best = f
		}
	}
	return best.from(now, 0)
}

// goesBefore reports whether a flow goes before another, given the counters of their tenants.
func (f *flow) goesBefore(other *flow, counter, others float64) bool {
	if f.band != other.band {
		return f.band.before(other.band)
	}
	return counter < others
}

// walk iterates over a queue's items in the order in which they would go. Starting a walk ends the previous one.
type walk struct {
	queue *queue
	now   mono.Time
}

// walk starts a walk. The item that next returned last may leave the queue.
func (q *queue) walk(now mono.Time) walk {
	q.walked = append(q.walked[:0], q.flows...)
	for _, f := range q.walked {
		f.at, f.counter = f.from(now, 0), f.tenant.counter
	}
	return walk{q, now}
}

// next returns the next item, or nil.
func (w walk) next() *Item {
	q := w.queue
	var best *flow
	for _, f := range q.walked {
		if f.at != nil && (best == nil || f.goesBefore(best, f.counter, best.counter)) {
			best = f
		}
	}
	if best == nil {
		return nil
	}
	it := best.at
	best.counter += float64(it.BatchSize) * q.row / best.tenant.weight
	best.at = best.after(w.now, it)
	return it
}

// after returns the item that follows it in the flow.
func (f *flow) after(now mono.Time, it *Item) *Item {
	l, k := &f.levels[it.level], &it.links[ofQueue]
	if k.in == &l.behind {
		if k.next != nil {
			return k.next
		}
		return f.from(now, it.level+1)
	}
	if next := l.freshFrom(now, k.next); next != nil {
		return next
	}
	if l.behind.head != nil {
		return l.behind.head
	}
	return f.from(now, it.level+1)
}

// from returns the first item of a level, or of the levels below it.
func (f *flow) from(now mono.Time, index int) *Item {
	for ; index < len(f.levels); index++ {
		l := &f.levels[index]
		if it := l.freshFrom(now, l.fresh.head); it != nil {
			return it
		}
		if l.behind.head != nil {
			return l.behind.head
		}
	}
	return nil
}

// freshFrom returns the first item, from it on, that has not timed out. It moves those that have timed out behind.
func (l *level) freshFrom(now mono.Time, it *Item) *Item {
	for it != nil && it.behindAt != 0 && it.behindAt <= now {
		next := it.links[ofQueue].next
		l.fresh.remove(it)
		l.behind.push(it)
		it = next
	}
	return it
}
