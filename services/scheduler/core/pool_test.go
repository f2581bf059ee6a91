package core

import (
	"maps"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
)

// pool is all that is outside of the cores of one pool's schedulers. It fails
// the test when they say what cannot be.
type pool struct {
	t         *rapid.T
	core      *Core // of the present scheduler; nil while there is none
	now       mono.Time
	epoch     uint64
	last      uint64 // request
	asked     map[uint64]*asked
	workers   map[uint64]*poolWorker // that are alive
	next      uint64                 // worker
	repeats   bool                   // the model is idempotent
	reroutes  bool                   // gateways submit once more what is returned to them
	pipelined int                    // batches that each instance takes beyond those that it runs
	unloaded  bool                   // the model has left the repository
	stored    *History               // what the store holds; nil is nothing
	todo      []func()               // what follows from the present step
}

// asked is a request as its gateway sees it.
type asked struct {
	attempt  uint32
	epoch    uint64 // of the first scheduler that had it
	deadline mono.Time
	settled  bool
	answered bool
	returned bool // and submitted once more
	runs     int
	spared   bool // a worker has answered it without running it
}

// poolWorker is one life of a worker.
type poolWorker struct {
	id        uint64
	connected bool
	broken    bool // the stream has ended, of which the scheduler has not heard
	heard     bool // by the present scheduler
	slots     uint32
	lanes     map[uint32]*poolLane // that are open, by slot
	inbox     []*infer.Batch       // sent, and not arrived
	open      []*infer.Batch       // that run or wait for their turn there
	runs      map[*infer.Batch]bool
	sent      []*infer.Batch // on the present stream, and not over
	started   infer.Recent
}

// poolLane is an instance as its worker sees it.
type poolLane struct {
	credits   int // for batches that run, and for pipelined ones
	pipelined int
	retiring  bool
}

var poolModel = infer.ModelRef{Name: "m", Version: 1, Generation: 1}

func newPool(t *rapid.T) *pool {
	p := &pool{
		t: t, now: scriptStart, asked: make(map[uint64]*asked), workers: make(map[uint64]*poolWorker),
		repeats: rapid.Bool().Draw(t, "idempotent"), reroutes: rapid.Bool().Draw(t, "reroutes"),
		pipelined: rapid.IntRange(0, 2).Draw(t, "pipelined"),
	}
	p.join()
	p.join()
	p.lead(t)
	return p
}

// join has a worker come, with one instance that runs two orders at a time.
func (p *pool) join() {
	p.next++
	w := &poolWorker{id: p.next, lanes: make(map[uint32]*poolLane), runs: make(map[*infer.Batch]bool)}
	p.workers[p.next] = w
	p.openLane(w, 2)
}

// openLane opens an instance.
func (p *pool) openLane(w *poolWorker, atOnce int) {
	w.slots++
	w.lanes[w.slots] = &poolLane{credits: atOnce + p.pipelined, pipelined: p.pipelined}
	if w.connected && !w.broken {
		p.grant(w, w.slots)
	}
}

// grant offers the credits of an instance that no order holds.
func (p *pool) grant(w *poolWorker, slot uint32) {
	id := infer.InstanceID{Worker: w.id, Slot: slot}
	p.step(&Event{Kind: Granted, Grant: &infer.Grant{Instance: id, Model: poolModel, Credits: w.lanes[slot].credits - w.taken(slot), Pipelined: w.lanes[slot].pipelined}})
}

// taken is how many orders an instance has.
func (w *poolWorker) taken(slot uint32) (n int) {
	for _, o := range w.open {
		if o.Instance.Slot == slot {
			n++
		}
	}
	return n
}

// sorted are the living workers.
func (p *pool) sorted() []*poolWorker {
	return slices.SortedFunc(maps.Values(p.workers), func(a, b *poolWorker) int { return int(a.id) - int(b.id) })
}

func (p *pool) step(e *Event) {
	if p.core == nil {
		return
	}
	for _, d := range slices.Clone(p.core.Step(p.now, e)) {
		p.see(d)
	}
	for len(p.todo) > 0 {
		next := p.todo[0]
		p.todo = p.todo[1:]
		next()
	}
}

func (p *pool) see(d Decision) {
	switch d.Kind {
	case Dispatch:
		p.dispatched(d.Members())
	case Refuse, Fail, HandOff:
		if d.Kind != HandOff || d.Reason != "" {
			p.refused(d.Item().Work, d.Reason)
		}
	case InstanceRetired:
		p.retired(d.Instance)
	case Record:
		history := p.core.History()
		p.stored = &history
		p.todo = append(p.todo, func() { p.step(&Event{Kind: Recorded, Version: uint64(d.A)}) })
	}
}

func (p *pool) dispatched(b *Batch) {
	o := b.Batch
	o.Requests = slices.Clone(o.Requests)
	w := p.workers[o.Instance.Worker]
	switch {
	case w == nil || !w.connected:
		p.t.Fatalf("batch %d went to worker %d, which is not connected", o.ID.Number, o.Instance.Worker)
	case w.broken:
		p.todo = append(p.todo, func() { p.giveBack(&o, errs.PeerUnreachable) })
	default:
		w.inbox, w.sent = append(w.inbox, &o), append(w.sent, &o)
	}
}

func (p *pool) giveBack(o *infer.Batch, reason errs.Reason) {
	p.step(&Event{Kind: BatchReturned, Batches: []*infer.Batch{o}, Reason: reason})
}

// refused is the scheduler's word on a request, as a gateway takes it.
func (p *pool) refused(work infer.Work, reason errs.Reason) {
	number := work.Request.Number
	r := p.asked[number]
	if reason == errs.RequestFinished && r.runs == 0 && !r.spared {
		p.t.Fatalf("request %d is said to have finished, and nobody has begun it", number)
	}
	if !r.settled && work.Attempt != r.attempt {
		return
	}
	switch {
	case reason == errs.RequestUnderway:
		r.settled = true
	case reason == errs.SchedulerDeposed || reason == errs.PeerUnreachable: // it is submitted again
	case (reason == errs.NoWorker || reason == errs.ModelNotReady) && p.reroutes && !r.returned:
		r.returned, r.epoch = true, 0
		p.todo = append(p.todo, func() { p.send(number) })
	default:
		r.answered = true
	}
}

// retired closes an instance that has nothing to do any more.
func (p *pool) retired(id infer.InstanceID) {
	w := p.workers[id.Worker]
	if w == nil || w.broken {
		return
	}
	for _, o := range slices.Concat(w.inbox, w.open) {
		if o.Instance == id {
			p.t.Fatalf("instance %v retired while batch %d is under way", id, o.ID.Number)
		}
	}
	delete(w.lanes, id.Slot)
}

// send submits a request to the present scheduler, again if it was before.
func (p *pool) send(number uint64) {
	r := p.asked[number]
	if p.core == nil || r.answered {
		return
	}
	r.attempt++
	work := infer.Work{Request: infer.RequestID{Origin: 1, Number: number}, Attempt: r.attempt, Epoch: r.epoch}
	r.settled = false
	if r.epoch == 0 {
		r.epoch = p.epoch
	}
	p.step(&Event{Kind: Submit, Item: &Item{
		Request: &infer.Request{Work: work, BatchSize: 1}, Work: work, Model: poolModel, BatchSize: 1, Enqueued: p.now, Deadline: r.deadline,
	}})
}

// again submits what has no answer.
func (p *pool) again() {
	for _, number := range slices.Sorted(maps.Keys(p.asked)) {
		p.send(number)
	}
}

// arrive has the first order that was sent reach its instance, and begin if it
// is its turn.
func (p *pool) arrive(w *poolWorker) bool {
	if len(w.inbox) == 0 {
		return false
	}
	o := w.inbox[0]
	w.inbox = w.inbox[1:]
	l := w.lanes[o.Instance.Slot]
	if l == nil {
		w.forget(o)
		p.giveBack(o, errs.NoWorker)
		return true
	}
	if w.taken(o.Instance.Slot) == l.credits {
		p.t.Fatalf("instance %v got more batches than its %d credits", o.Instance, l.credits)
	}
	w.open = append(w.open, o)
	p.begin(w)
	return true
}

// begin has orders begin whose turn it is.
func (p *pool) begin(w *poolWorker) {
	running := make(map[uint32]int)
	for o := range w.runs {
		running[o.Instance.Slot]++
	}
	for _, o := range w.open {
		l := w.lanes[o.Instance.Slot]
		if w.runs[o] || l != nil && running[o.Instance.Slot] == l.credits-l.pipelined {
			continue
		}
		w.runs[o] = true
		running[o.Instance.Slot]++
		for _, r := range o.Requests {
			p.asked[r.Work.Request.Number].runs++
		}
	}
}

// forget notes that an order is over, or not there any more.
func (w *poolWorker) forget(o *infer.Batch) {
	is := func(s *infer.Batch) bool { return s == o }
	w.sent, w.inbox, w.open = slices.DeleteFunc(w.sent, is), slices.DeleteFunc(w.inbox, is), slices.DeleteFunc(w.open, is)
	delete(w.runs, o)
}

// spare answers a request of an order that has not begun.
func (p *pool) spare(w *poolWorker, o *infer.Batch, at int) {
	id := o.Requests[at].Work.Request
	w.started.Add(id)
	p.asked[id.Number].answered, p.asked[id.Number].spared = true, true
	o.Requests = slices.Delete(slices.Clone(o.Requests), at, at+1)
}

// end answers an order's requests and tells the scheduler, if it is there.
func (p *pool) end(w *poolWorker, o *infer.Batch) {
	w.forget(o)
	for _, r := range o.Requests {
		w.started.Add(r.Work.Request)
		p.asked[r.Work.Request.Number].answered = true
	}
	p.begin(w)
	if w.connected && !w.broken {
		p.step(&Event{Kind: InstanceFree, Ended: &infer.InstanceFree{
			Batch: o.ID, Instance: o.Instance, Credits: 1, Executions: 1,
			Timing: infer.Timing{Start: p.now.Add(-20 * time.Microsecond), Done: p.now},
		}})
	}
}

// sever ends a worker's stream, of which the scheduler hears by [pool.cut]. What
// was on its way is lost, and instances that retire need not wait for it.
func (p *pool) sever(w *poolWorker) {
	w.broken, w.inbox = true, nil
	maps.DeleteFunc(w.lanes, func(_ uint32, l *poolLane) bool { return l.retiring })
}

// cut tells the scheduler that a worker's stream has ended.
func (p *pool) cut(w *poolWorker) {
	if !w.connected {
		return
	}
	p.sever(w)
	under := w.sent
	w.connected, w.broken, w.sent = false, false, nil
	p.step(&Event{Kind: WorkerDisconnected, Instance: infer.InstanceID{Worker: w.id}, Batches: under, Until: p.now.Add(6 * time.Second)})
}

// meet connects a worker to the present scheduler.
func (p *pool) meet(w *poolWorker) {
	if w.connected || p.core == nil {
		return
	}
	w.connected, w.heard = true, true
	held := &infer.Held{Epoch: p.epoch, Started: w.started.Started()}
	for _, o := range w.open {
		r := infer.Running{Batch: o.ID, Instance: o.Instance}
		for _, request := range o.Requests {
			r.Units = append(r.Units, request.Work)
		}
		held.Running = append(held.Running, r)
	}
	p.step(&Event{Kind: WorkerConnected, Instance: infer.InstanceID{Worker: w.id}, Held: held})
	for _, slot := range slices.Sorted(maps.Keys(w.lanes)) {
		p.grant(w, slot)
	}
}

func (p *pool) configure() {
	if p.unloaded {
		return
	}
	config := &modelconfig.Config{MaxBatchSize: 2, Batching: &modelconfig.DynamicBatching{}}
	if p.repeats {
		config.Parameters = map[string]string{Idempotent: "true"}
	}
	p.step(&Event{Kind: Configure, Model: &Model{Ref: poolModel, Config: config}})
}

// measured has the scheduler know what the model takes where orders may go ahead,
// which nothing does before.
func (p *pool) measured() {
	if m := p.core.models[poolModel]; m != nil && p.pipelined > 0 {
		m.costsOn("").learn(1, shape{}, 20*time.Microsecond)
		m.costsOn("").learn(2, shape{}, 20*time.Microsecond)
	}
}

// expire has gateways answer the requests whose deadlines have passed.
func (p *pool) expire() {
	for _, r := range p.asked {
		r.answered = r.answered || r.deadline != 0 && r.deadline <= p.now
	}
}

// credited checks that every instance has its credits back when nothing runs.
func (p *pool) credited() {
	known := 0
	for _, w := range p.sorted() {
		for slot, l := range w.lanes {
			known++
			in := p.core.instances[infer.InstanceID{Worker: w.id, Slot: slot}]
			if in == nil || in.credits != l.credits || in.running != 0 {
				p.t.Fatalf("instance %d/%d has %d credits and runs nothing: the scheduler knows it as %+v", w.id, slot, l.credits, in)
			}
		}
	}
	if n := len(p.core.instances); n != known {
		p.t.Fatalf("the scheduler knows %d instances, the workers have %d", n, known)
	}
}
