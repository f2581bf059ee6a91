package core

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
)

// absence is how long a worker whose lease has never been reported may have neither lease nor stream before it counts
// as lost.
const absence = 6 * time.Second

// undecided is how long requests of a lost worker may remain unanswered: as long as gateways wait for a scheduler,
// plus as long as that one waits for its workers, with a margin.
const undecided = 20 * time.Second

// membership tracks who is alive, by leases, streams and reports, and what workers may have started.
//
// No incarnation receives a batch before the store holds its name. The next leader inherits the names by writing them
// under its own epoch, so that writes of this one fail. It then knows who may have started what, and waits for the
// reports of those workers and of all that hold a lease. A worker that does not report in time leaves the history of
// earlier leaders incomplete, and their requests fail instead of running again.
type membership struct {
	leads   bool
	epoch   uint64
	workers map[uint64]*worker // by incarnation
	leases  map[string]lease   // by key
	// reports is how many workers have still to report, by reportBy at the latest.
	reports  int
	reportBy mono.Time
	// incomplete is the epoch since which the history is complete.
	incomplete uint64
	// Versions of the record that the store should hold, was asked to hold, and holds.
	version, asked, stored uint64
	// grace is until when models without instances are waited for; first is how long to wait for a model that has had
	// no instance yet.
	grace mono.Time
	first time.Duration
	clock timer
}

// lease is the holder of the lease of a key; incarnation 0 is nobody.
type lease struct{ incarnation, revision uint64 }

// worker is an incarnation of a worker.
type worker struct {
	id                uint64
	key               string // of its lease; empty until the lease is reported
	leased, connected bool
	released          bool        // it gave its lease up
	left              bool        // it has ended, and nothing that it ran is undecided
	unsaid            uint64      // version of the first record without it, after which WorkerGone follows; 0 is none
	replaced          bool        // another incarnation holds its lease
	lost              bool        // it has neither lease nor stream, and counts as dead
	reported          bool        // to this leader
	awaited           bool        // its report is
	version           uint64      // of the record that first names it; 0 if none does
	recorded          bool        // the store holds that record
	instances         []*instance // by slot
	batches           []*Batch    // in dispatch order
	memory, used      int64       // bytes that its batches may use, 0 being no limit; and bytes that they use
	timer             timer       // until it counts as lost, or is forgotten
}

// worker returns the entry of an incarnation, creating it if necessary.
func (c *Core) worker(id uint64) *worker {
	w := c.workers[id]
	if w == nil {
		w = &worker{id: id}
		w.timer.worker = w
		c.workers[id] = w
	}
	return w
}

// hold records who holds the lease of a key; 0 is nobody. It ignores information that is older than what is known.
func (c *Core) hold(key string, now lease, released bool) {
	before := c.leases[key]
	if now.revision < before.revision || now.incarnation == before.incarnation {
		now.incarnation, now.revision = before.incarnation, max(now.revision, before.revision)
		c.leases[key] = now
		return
	}
	c.leases[key] = now
	if now.incarnation == 0 {
		if w := c.workers[before.incarnation]; w != nil {
			w.leased, w.released = false, released
			c.loseAbsent(w)
		}
		return
	}
	w := c.worker(now.incarnation)
	w.key, w.leased, w.released = key, true, false
	c.revive(w)
	for _, id := range slices.Sorted(maps.Keys(c.workers)) {
		if other := c.workers[id]; other.key == key && other != w {
			other.leased, other.connected, other.replaced = false, false, true
			c.lose(other)
		}
	}
}

// revive notes that a worker is alive.
func (c *Core) revive(w *worker) {
	w.lost = false
	c.timers.set(&w.timer, 0)
}

// loseAbsent loses a worker that has neither lease nor stream.
func (c *Core) loseAbsent(w *worker) {
	if !w.leased && !w.connected && !w.lost {
		c.lose(w)
	}
}

// lose counts a worker as dead: the requests that run there fail, and those that wait continue to wait for instances
// on other workers.
func (c *Core) lose(w *worker) {
	if !w.lost {
		w.lost = true
		unexpected := int64(1)
		if w.released {
			unexpected = 0
		}
		if !w.left { // otherwise once the store no longer names it
			c.decide(Decision{Kind: WorkerGone, Instance: infer.InstanceID{Worker: w.id}, A: unexpected})
		}
		c.timers.set(&w.timer, c.now.Add(undecided))
	}
	w.connected = false
	for _, in := range w.instances {
		in.credits = 0 // nothing goes there in the meantime
	}
	for _, b := range slices.Clone(w.batches) {
		c.loseBatch(b)
	}
	c.dropInstances(w, false)
	c.uprootAway(w.id, func(*sequence) bool { return false })
	if w.released || w.replaced {
		c.settle(w, false)
	}
}

// leave forgets a worker that has ended: it runs nothing, and its gateways have acknowledged all of its answers, so
// nobody will ask for any of them again. The record no longer names it, and a successor does not wait for it.
func (c *Core) leave(w *worker) {
	w.leased, w.left = false, true
	c.lose(w)
	w.version, w.unsaid = 0, c.version+1
	c.record()
	if !c.leads {
		c.sayGone(w)
	}
}

// sayGone reports that a worker has left and that the store no longer names it.
func (c *Core) sayGone(w *worker) {
	w.unsaid = 0
	c.decide(Decision{Kind: WorkerGone, Instance: infer.InstanceID{Worker: w.id}})
}

func (c *Core) dropInstances(w *worker, away bool) {
	for _, in := range slices.Clone(w.instances) {
		c.dropInstance(in, away)
	}
}

// outlast is called when a worker has been absent for long. The worker then counts as lost, or is forgotten once none
// of its requests can be undecided any more. Requests of earlier leaders that have no answer by then fail.
func (c *Core) outlast(w *worker) {
	if !w.lost {
		c.loseAbsent(w)
		return
	}
	c.settle(w, false)
	delete(c.workers, w.id)
	if c.leases[w.key].incarnation == 0 {
		delete(c.leases, w.key)
	}
	if w.version != 0 {
		c.incomplete = c.epoch
		c.record()
	}
}

// settle stops waiting for a worker's report, because it has arrived or will not arrive. A worker that no record
// names has started nothing that is undecided. For any other worker a missing report proves nothing, even if the
// worker has released its lease: it may have run requests whose answers were lost.
func (c *Core) settle(w *worker, reported bool) {
	if !w.awaited {
		return
	}
	w.awaited = false
	c.reports--
	if !reported && w.version != 0 {
		c.incomplete = c.epoch
	}
	if c.reports == 0 {
		c.recheck = c.parked.n
	}
}

// reporting reports whether a worker's report may still arrive in time.
func (c *Core) reporting() bool { return c.reports > 0 && c.now < c.reportBy }

// becomeLeader starts a leadership.
func (c *Core) becomeLeader(e *Event) {
	c.leads, c.epoch = true, e.Epoch
	c.reportBy, c.grace, c.first = e.Until, max(c.grace, e.Until), e.Until.Sub(c.now)
	c.incomplete = e.History.IncompleteBefore
	c.version++
	c.asked, c.stored = c.version, c.version
	for _, id := range e.History.Workers {
		w := c.worker(id)
		w.version, w.recorded = c.version, true
		if !w.leased && !w.connected && !w.lost {
			w.lost = true
			c.timers.set(&w.timer, max(c.now.Add(undecided), e.Until))
		}
	}
	news := false
	for _, w := range c.workers {
		switch {
		case w.reported:
			w.version = cmp.Or(w.version, c.version+1)
			news = news || !w.recorded
		case w.recorded || w.leased || w.connected:
			w.awaited = true
			c.reports++
		}
	}
	for _, w := range c.workers {
		if w.released || w.replaced {
			c.settle(w, false)
		}
	}
	if news {
		c.record()
	}
	c.recheck = c.parked.n
	c.timers.set(&c.clock, e.Until)
}

// record asks the store to hold which workers may have received batches.
func (c *Core) record() {
	c.version++
	if c.leads && c.asked == c.stored { // otherwise when the previous record has been stored
		c.askStore()
	}
}

func (c *Core) askStore() {
	c.asked = c.version
	c.decide(Decision{Kind: Record, A: int64(c.asked)})
}

// History returns what the store is to hold, as of the last Record.
func (c *Core) History() History {
	h := History{IncompleteBefore: c.incomplete}
	for _, id := range slices.Sorted(maps.Keys(c.workers)) {
		if v := c.workers[id].version; v != 0 && v <= c.asked {
			h.Workers = append(h.Workers, id)
		}
	}
	return h
}

// recorded notes what the store holds: workers that are new in it may now receive batches.
func (c *Core) recorded(version uint64) {
	if version != c.asked {
		return // of an earlier leadership
	}
	c.stored = version
	for _, id := range slices.Sorted(maps.Keys(c.workers)) {
		w := c.workers[id]
		if w.unsaid != 0 && w.unsaid <= version {
			c.sayGone(w)
		}
		if w.recorded = w.version != 0 && w.version <= version; w.recorded {
			for _, in := range w.instances {
				c.touch(in.model)
			}
		}
	}
	slices.SortFunc(c.asking, func(a, b *model) int { return a.ref.Compare(b.ref) })
	if c.version > c.asked {
		c.askStore()
	}
}

// connect records what a worker has started, under this leadership or before, and reconciles it with what the core
// believes to run there.
func (c *Core) connect(id uint64, held *infer.Held) {
	w := c.worker(id)
	c.dropInstances(w, true)
	for _, b := range w.batches {
		b.instance = nil
	}
	c.revive(w)
	w.connected, w.reported, w.left, w.unsaid = true, true, false, 0
	if w.version == 0 {
		w.version = c.version + 1
		c.record()
	}
	var started infer.Recent
	for _, b := range held.Started {
		started.Merge(b)
		c.started.Merge(b)
	}
	runs := make(map[infer.BatchID]bool, len(held.Running))
	for i := range held.Running {
		r := &held.Running[i]
		runs[r.Batch] = true
		c.adopt(w, r)
	}
	for _, b := range slices.Clone(w.batches) {
		if !runs[b.ID] {
			c.reconcile(b, &started, held.Sequences)
		}
	}
	c.sever(held.Sequences)
	c.recallSequences(w, held.Sequences, w.awaited && c.reporting())
	c.settle(w, true)
}

// part forgets the instances of a worker whose stream has ended, but not what runs there. A worker whose lease has
// not been reported has a short time to acquire one; for the others, the end of their lease decides.
func (c *Core) part(e *Event) {
	for _, o := range e.Batches {
		if b := c.batches[o.ID]; b != nil {
			b.Returned = true
		} else {
			c.decide(Decision{Kind: UnknownBatch, Batch: o.ID})
		}
	}
	c.waitForInstances(e.Until)
	w := c.workers[e.Instance.Worker]
	if w == nil || !w.connected {
		return // another incarnation holds its lease
	}
	w.connected = false
	if !w.leased {
		c.timers.set(&w.timer, c.now.Add(absence))
	}
	c.dropInstances(w, true)
}

// stepDown ends a leadership. Waiting requests return to their gateways, in parts; this is complete when the core is
// [Core.Settled]. Running ones are left to their workers and the pool's next scheduler. The core retains who is
// alive.
func (c *Core) stepDown() {
	batches := slices.SortedFunc(maps.Values(c.batches), func(a, b *Batch) int {
		return a.ID.Compare(b.ID)
	})
	for _, b := range batches {
		c.handOff(b, func(*Item) bool { return true })
		c.forgetBatch(b)
	}
	for i := range c.sweeps {
		c.sweeps[i].reason = errs.SchedulerDeposed
	}
	for _, origin := range slices.Sorted(maps.Keys(c.gateways)) {
		c.sweeps = append(c.sweeps, sweep{gateway: c.gateways[origin], reason: errs.SchedulerDeposed})
	}
	clear(c.gateways)
	clear(c.interrupted)
	clear(c.instances)
	c.limiter = newLimiter(c.config.RateLimit, c.config.DeviceBatches)
	for _, m := range c.modelsInOrder() {
		m.instances, m.retiring, m.awaited = nil, 0, false
		c.forgetSequences(m)
		c.touch(m)
	}
	for _, w := range c.workers {
		w.connected, w.reported, w.awaited, w.recorded, w.version, w.unsaid, w.instances = false, false, false, false, 0, 0, nil
	}
	c.started, c.severed = infer.Recent{}, infer.Recent{}
	c.timers.set(&c.clock, 0)
	c.leads, c.epoch, c.reports, c.reportBy, c.grace, c.first = false, 0, 0, 0, 0, 0
	c.asked, c.stored = c.version, c.version
}

// waitForInstances waits until the given time for instances of models that have none.
func (c *Core) waitForInstances(until mono.Time) {
	c.grace = max(c.grace, until)
	if c.leads && c.reports == 0 { // otherwise once the reports have arrived, or should have
		c.timers.set(&c.clock, c.grace)
	}
}

// awaitFirst reports whether to wait for the first instance that a model gets under this leadership, which happens
// only once per model. A gateway sends requests only to models that it knows to be ready, so there must be a worker
// that has not connected yet, and whose lease the scheduler may not know of.
func (c *Core) awaitFirst(m *model) bool {
	if m.awaited || c.first <= 0 {
		return false
	}
	m.awaited = true
	c.waitForInstances(c.now.Add(c.first))
	return true
}

// graceOver is called when the time is over within which workers should have reported or granted instances.
func (c *Core) graceOver() {
	if c.reports > 0 && c.now >= c.reportBy {
		for _, w := range c.workers {
			c.settle(w, false)
		}
	}
	c.recheck = c.parked.n
	if c.now < c.grace {
		c.timers.set(&c.clock, c.grace)
		return
	}
	for _, m := range c.modelsInOrder() {
		c.abandon(m)
	}
}
