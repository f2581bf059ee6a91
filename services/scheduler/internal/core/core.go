package core

import (
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/invariant"
	"github.com/nereid-serving/nereid/libs/mono"
)

// Counts says what became of all items since the start.
type Counts struct {
	// Refused items were never admitted.
	Refused uint64
	// Admitted = Completed + Cancelled + Expired + Lost + Passed + in flight.
	Admitted, Completed, Cancelled, Expired, Lost uint64
	// Passed items are finished by others: by their worker, by the pool's next
	// scheduler, or by their gateway, which submits them again.
	Passed uint64
}

// Core is the scheduler of one pool. It is not safe for concurrent use.
type Core struct {
	term
	limits    Limits
	models    map[infer.ModelRef]*model
	attached  map[uint64]bool // workers
	instances map[infer.InstanceID]*instance
	items     map[infer.RequestID]*Item
	orders    map[orderKey]*Batch
	lastOrder uint64
	timers    timers

	waiting load
	counts  Counts

	actions []Action
	free    []*Batch // for reuse
	done    []*Batch // named by the last step's actions
	again   []*model // to be scheduled, within expire
}

// orderKey names an order among those of all schedulers that the pool had.
type orderKey struct{ epoch, id uint64 }

func keyOf(o *infer.Order) orderKey { return orderKey{o.Epoch, o.ID} }

// New makes an empty core, which decides nothing before it leads.
func New(limits Limits) *Core {
	return &Core{
		limits:    limits,
		models:    make(map[infer.ModelRef]*model),
		attached:  make(map[uint64]bool),
		instances: make(map[infer.InstanceID]*instance),
		items:     make(map[infer.RequestID]*Item),
		orders:    make(map[orderKey]*Batch),
	}
}

// Counts returns the totals.
func (c *Core) Counts() Counts { return c.counts }

// InFlight is the number of items that wait or run.
func (c *Core) InFlight() int { return len(c.items) }

// Load is how much waits in the pool and runs.
type Load struct {
	Waiting, Running int
	// Full is how far the queue is from empty, 0, to its limits, 1; 0 without
	// limits.
	Full float64
}

// Load returns the pool's load. It costs the same however much that is.
func (c *Core) Load() Load {
	waiting := c.waiting.requests + c.earlyLoad.requests
	full := max(share(float64(waiting), float64(c.limits.Requests)), share(float64(c.waiting.bytes+c.earlyLoad.bytes), float64(c.limits.Bytes)))
	return Load{Waiting: waiting, Running: len(c.items) - waiting, Full: min(full, 1)}
}

func share(n, of float64) float64 {
	if of == 0 {
		return 0
	}
	return n / of
}

// Queue is what waits for a loaded content and runs of it.
type Queue struct {
	Waiting, Running int
	// Oldest is when the first of those came that wait; 0 if none does.
	Oldest mono.Time
}

// Queues returns the queue of each loaded content.
func (c *Core) Queues() map[infer.ModelRef]Queue {
	queues := make(map[infer.ModelRef]Queue, len(c.models))
	for ref, m := range c.models {
		queues[ref] = Queue{Waiting: m.policy.Len(), Oldest: m.policy.Oldest()}
	}
	for _, b := range c.orders {
		if q, ok := queues[b.Model]; ok { // else of an earlier scheduler, and its instance is not granted yet
			q.Running += len(b.Items)
			queues[b.Model] = q
		}
	}
	return queues
}

// NextWake is when the core wants a Tick if nothing else happens before; 0 is
// never.
func (c *Core) NextWake() mono.Time { return c.timers.next() }

// Step takes one event at the time now, which never runs backwards. The
// returned actions, and the batches and completions that they name, are valid
// until the next Step.
func (c *Core) Step(now mono.Time, e *Event) []Action {
	clear(c.actions)
	c.actions = c.actions[:0]
	c.recycle()
	c.expire(now)
	c.handle(now, e)
	if invariant.Enabled {
		c.check()
	}
	return c.actions
}

func (c *Core) handle(now mono.Time, e *Event) {
	switch e.Kind {
	case Submit:
		c.submit(now, e.Item)
	case Cancel:
		c.cancel(now, e.Request)
	case Configure:
		c.configure(now, e.Model)
	case Remove:
		c.remove(e.Model.Ref)
	case Granted:
		c.grant(now, e.Grant)
	case Retire:
		c.retire(now, e.Instance)
	case Completed:
		c.complete(now, e.Completion)
	case Detached:
		c.detach(now, e.Instance.Worker)
	default:
		c.handleTerm(now, e)
	}
}

func (c *Core) act(a Action) { c.actions = append(c.actions, a) }

// submit admits an item or refuses it, or keeps it until it is known which.
func (c *Core) submit(now mono.Time, it *Item) {
	if reason := c.known(now, it); reason != "" {
		c.refuse(it, reason, 0)
		return
	}
	if !c.leads || c.uncertain(now, it) {
		c.hold(now, it)
		return
	}
	m := c.models[it.Model]
	if reason, retry := c.admit(now, m, it); reason != "" {
		c.refuse(it, reason, retry)
		return
	}
	it.model = m
	it.timer.item = it
	c.counts.Admitted++
	c.items[it.Work.Request] = it
	c.waiting.add(it, 1)
	m.waiting.add(it, 1)
	c.timers.set(&it.timer, mono.Earliest(it.Deadline, it.timeout))
	c.schedule(now, m)
}

func (c *Core) refuse(it *Item, reason errs.Reason, retry time.Duration) {
	c.counts.Refused++
	c.act(Action{Kind: Finish, Item: it, Reason: reason, Retry: retry})
}

// admit hands the item to its model's policy unless there is a reason not to.
func (c *Core) admit(now mono.Time, m *model, it *Item) (errs.Reason, time.Duration) {
	switch {
	case m == nil:
		return errs.ModelNotReady, 0
	case len(m.instances) == 0 && !c.expectFirst(now, m) && now >= c.patience:
		return errs.NoWorker, 0
	case !it.doneBy(now):
		return errs.DeadlineQueue, 0
	}
	if end := m.predict(now, it); !it.doneBy(end) {
		if !m.mayTry(now, it) {
			return errs.DeadlineUnmeetable, end.Sub(it.Deadline)
		}
		it.tried = true
	}
	if reason := m.policy.Add(it); reason != "" {
		return reason, 0
	}
	if !c.makeRoom(now, m, it) {
		m.policy.Remove(it)
		return errs.QueueFull, 0
	}
	return "", 0
}

// complete ends an order and gives its instance the next one.
func (c *Core) complete(now mono.Time, done *infer.Completion) {
	in := c.instances[done.Instance]
	if in != nil {
		in.credits += done.Credits
	}
	b := c.orders[orderKey{done.Epoch, done.Order}]
	if b == nil || b.Order.Instance != done.Instance {
		c.scheduleInstance(now, in)
		return
	}
	c.leave(now, b)
	if in != nil {
		in.model.lastEnd = now
		if done.Executions == 1 {
			in.learn(b.Rows, done.Timing.Done.Sub(done.Timing.Start))
		}
	}
	for _, it := range b.Items {
		c.forget(it)
	}
	c.counts.Completed += uint64(len(b.Items))
	c.act(Action{Kind: Finished, Batch: b, Completion: done})
	c.done = append(c.done, b)
	c.scheduleInstance(now, in)
}

// leave takes a batch off its instance, if that is there.
func (c *Core) leave(now mono.Time, b *Batch) {
	delete(c.orders, keyOf(&b.Order))
	if in := b.instance; in != nil {
		in.running--
		in.work -= b.takes
		in.busyUntil = min(in.busyUntil, now.Add(in.work)) // one may be there all the time
	}
}

func (c *Core) scheduleInstance(now mono.Time, in *instance) {
	if in != nil {
		c.schedule(now, in.model)
	}
}

// recycle takes back the batches that the last step's actions named.
func (c *Core) recycle() {
	for i, b := range c.done {
		b.reset()
		c.free = append(c.free, b)
		c.done[i] = nil
	}
	c.done = c.done[:0]
}

func (c *Core) newBatch() *Batch {
	if n := len(c.free); n > 0 {
		b := c.free[n-1]
		c.free = c.free[:n-1]
		return b
	}
	return &Batch{}
}

// check holds the core's books against each other.
func (c *Core) check() {
	waiting, running := c.early.n, 0
	for _, m := range c.models {
		waiting += m.policy.Len()
		invariant.Check(m.waiting.requests == m.policy.Len(), "%d items of %v in its queue, %d counted", m.policy.Len(), m.ref, m.waiting.requests)
		invariant.Check(!m.stalls(), "%d items of %v wait beside a free instance, and no time is set to look again", m.policy.Len(), m.ref)
	}
	orders, work := make(map[*instance]int), make(map[*instance]time.Duration)
	for _, b := range c.orders {
		running += len(b.Items)
		orders[b.instance]++
		work[b.instance] += b.takes
	}
	for id, in := range c.instances {
		invariant.Check(in.running == orders[in], "%d orders run on %v, %d counted", orders[in], id, in.running)
		invariant.Check(in.work == work[in], "the orders on %v take %v, %v counted", id, work[in], in.work)
		invariant.Check(in.credits >= 0, "instance %v has %d credits", id, in.credits)
	}
	n := c.counts
	invariant.Check(waiting-c.early.n == c.waiting.requests, "%d items in the queues, %d counted", waiting, c.waiting.requests)
	invariant.Check(waiting+running == len(c.items), "%d wait, %d run, %d known", waiting, running, len(c.items))
	invariant.Check(n.Admitted == n.Completed+n.Cancelled+n.Expired+n.Lost+n.Passed+uint64(len(c.items)),
		"%+v does not add up with %d in flight", n, len(c.items))
}
