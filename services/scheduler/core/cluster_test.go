package core

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
)

var (
	histories = flag.Int("histories", 500, "how many random histories TestNothingRunsTwice tries")
	seed      = flag.Uint64("seed", 1, "the first seed of random histories")
)

// TestNothingRunsTwice has two schedulers, three workers and a gateway die, come
// back, and be cut off from each other and from the store, at any moment. Each
// process knows what it reads, late, and what reaches it. Workers also stop in
// good order, or exit without it, and lose answers, or do both: nothing runs twice
// and every request ends, within a minute after all is well again.
func TestNothingRunsTwice(t *testing.T) {
	for name, rules := range map[string]clusterRules{
		"no leaves":                         {},
		"clean leaves":                      {leaves: true},
		"lost answers":                      {loses: true},
		"clean leaves and lost answers":     {leaves: true, loses: true},
		"clean leaves and hasty exits":      {leaves: true, exits: true},
		"clean leaves, exits, lost answers": {leaves: true, exits: true, loses: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for n := range uint64(*histories) {
				if err := newCluster(*seed+n, rules).run(); err != nil {
					t.Fatalf("history of seed %d: %v", *seed+n, err)
				}
			}
		})
	}
}

// TestLeavesAreClean has workers leave in good order often enough for the histories to
// test it. None may exit while the record names it.
func TestLeavesAreClean(t *testing.T) {
	left := 0
	for n := range uint64(200) {
		c := newCluster(n, clusterRules{leaves: true})
		if err := c.run(); err != nil {
			t.Fatalf("history of seed %d: %v", n, err)
		}
		left += c.left
	}
	if left < 20 {
		t.Fatalf("%d workers have left in 200 histories: they do not test it", left)
	}
}

// TestSomethingRunsTwiceWithoutTheRecord takes the rule out: the store does not
// hold who may have got batches.
func TestSomethingRunsTwiceWithoutTheRecord(t *testing.T) {
	mustFind(t, clusterRules{unrecorded: true}, "runs twice")
}

// TestSomethingRunsTwiceWhereALeaverDoesNotWait takes the rule out that a worker
// reports its leave only when its gateways have acknowledged its answers.
func TestSomethingRunsTwiceWhereALeaverDoesNotWait(t *testing.T) {
	mustFind(t, clusterRules{leaves: true, loses: true, hasty: true}, "runs twice")
}

// TestSomethingHangsWhereAnAdoptedRequestHasNoWorker takes the rule out that a
// gateway is told which worker runs what it submits again.
func TestSomethingHangsWhereAnAdoptedRequestHasNoWorker(t *testing.T) {
	mustFind(t, clusterRules{loses: true, unplaced: true}, "has no answer")
}

// mustFind has histories without a rule come to what the rule prevents.
func mustFind(t *testing.T, rules clusterRules, text string) {
	t.Helper()
	const tries = 5000
	for n := range uint64(tries) {
		if err := newCluster(n, rules).run(); err != nil && strings.Contains(err.Error(), text) {
			t.Logf("history %d: %v", n+1, err)
			return
		}
	}
	t.Fatalf("no request %s in %d histories: they do not test the rule", text, tries)
}

// clusterRules are what is different from a whole cluster of a model without
// sequences.
type clusterRules struct {
	unrecorded  bool // the store does not hold who may have got batches
	leaves      bool // workers stop in good order
	exits       bool // and exit where their leave is not confirmed in time
	loses       bool // answers are lost
	hasty       bool // workers do not wait until their answers are acknowledged
	unplaced    bool // gateways are not told which worker runs what they submit again
	sequences   bool
	disordered  bool // the gateway submits again in any order
	forgetful   bool // and what follows in its sequence on a request that has failed
	namesEnding bool // hellos name sequences whose last request has arrived
}

// cluster is all processes of one pool, its store and the network. Times are
// those of the real ones.
type cluster struct {
	*rand.Rand
	now        mono.Time
	rules      clusterRules
	batching   *modelconfig.SequenceBatching // nil without sequences
	store      clusterStore
	schedulers []*scheduler
	workers    []*node
	nodes      map[uint64]*node // all incarnations
	gateway    clusterGateway
	clients    map[uint64]*clusterSequence // their present sequences
	left       int                         // workers whose leave was confirmed
	adopted    int                         // requests that ran on a state of an earlier leadership
	todo       []func()                    // what follows from the present step
	err        error
}

// clusterStore is what the store holds.
type clusterStore struct {
	revision uint64
	holder   *scheduler // of the pool
	expires  mono.Time  // its lease
	history  *History
	epoch    uint64 // of the history's writer
	written  uint64 // revision of the history
	leases   map[string]*clusterLease
	log      []Event // of the leases
}

type clusterLease struct {
	worker  *node
	expires mono.Time
}

// scheduler is a process that leads or stands by.
type scheduler struct {
	core    *Core // nil when it is dead
	cut     bool  // off the store
	leads   bool
	epoch   uint64
	known   uint64 // revision of the history that it read or wrote
	wants   uint64 // version that the store is to hold; 0 if it does
	history History
	seen    int // of the store's log
	streams map[uint64]*stream
}

// node is an incarnation of a worker.
type node struct {
	key     string
	id      uint64
	dead    bool
	diedAt  mono.Time
	cut     bool
	highest uint64 // highest epoch
	stream  *stream
	started infer.Recent
	running []*infer.Batch
	leaving bool                  // it retires its instance and then leaves
	dropped bool                  // an answer that nobody has acknowledged
	states  map[uint32]*nodeState // by slot
}

// stream is a worker's to a scheduler.
type stream struct {
	to       *scheduler
	from     *node
	brokenAt mono.Time // 0 is not
	up       []*Event
	down     []*infer.Batch
	under    []*infer.Batch // sent, and not completed
	granted  bool           // the worker's instance, and the scheduler has not let it go
	asked    bool           // to forget the worker
}

// clusterGateway submits requests and waits for their answers.
type clusterGateway struct {
	to       *scheduler // of the session; nil is none
	epoch    uint64
	brokenAt mono.Time
	highest  uint64
	since    mono.Time // without a session
	last     uint64
	dropped  map[uint64]mono.Time // when it heard last that answers of a worker were lost
	requests map[uint64]*clusterRequest
}

type clusterRequest struct {
	attempt  uint32
	first    mono.Time // submitted
	epoch    uint64
	settled  bool
	answered bool
	runs     int
	sent     bool // to some worker
	placed   *node
	answerBy mono.Time        // 0 is never
	of       *clusterSequence // nil without sequences
	broken   bool             // one before it in its sequence has failed
	place    infer.Sequence
}

func newCluster(seed uint64, rules clusterRules) *cluster {
	c := &cluster{Rand: rand.New(rand.NewPCG(seed, 7)), now: scriptStart, rules: rules, clients: make(map[uint64]*clusterSequence), nodes: make(map[uint64]*node)}
	if rules.sequences {
		c.batching = &modelconfig.SequenceBatching{Slots: 2, Oldest: c.IntN(2) == 0, MaxIdleMicros: uint64(sequenceIdle.Microseconds())}
	}
	c.store.leases = make(map[string]*clusterLease)
	c.gateway.requests, c.gateway.since = make(map[uint64]*clusterRequest), c.now
	c.gateway.dropped = make(map[uint64]mono.Time)
	for range 2 {
		c.schedulers = append(c.schedulers, c.boot(&scheduler{}))
	}
	for i := range 3 {
		c.workers = append(c.workers, c.start(fmt.Sprint("w", i)))
	}
	return c
}

// run lets things happen, and then everything be well. It returns what was not.
func (c *cluster) run() error {
	actions := []func(){
		c.submit, c.submit, c.submit, c.deliver, c.deliver, c.deliver, c.deliver, c.report, c.report, c.report, c.report,
		c.finishOne, c.wait, c.wait, c.write, c.write, c.write, c.connect, c.connect, c.connect, c.lead, c.lead, c.open, c.open,
		c.breakStream, c.noticeStream, c.killWorker, c.killBoth, c.killScheduler, c.bootScheduler, c.cutScheduler, c.cutWorker, c.stepDown, c.breakSession,
		c.watch, c.watch,
	}
	if c.rules.leaves {
		actions = append(actions, c.leave, c.leave, c.leave, c.connect, c.report, c.finishOne, c.write)
	}
	steps := 120
	if c.rules.sequences {
		steps = 240
		actions = append(actions, c.submit, c.submit, c.submit, c.cancel)
		actions = append(actions, c.deliver, c.deliver, c.report, c.report, c.finishOne, c.finishOne, c.connect, c.connect, c.write, c.write, c.lead, c.open)
	}
	c.lead()
	for range steps {
		actions[c.IntN(len(actions))]()
		if c.err != nil {
			return c.err
		}
	}
	return c.settle()
}

// settle mends everything, and checks that each request gets its answer.
func (c *cluster) settle() error {
	for _, s := range c.schedulers {
		s.cut = false
		if s.core == nil {
			c.boot(s)
		}
	}
	for i, w := range c.workers {
		if w.cut = false; w.dead {
			c.workers[i] = c.start(w.key)
		}
	}
	for range 60 {
		c.pass(time.Second)
		for range 3 {
			c.lead()
			c.watch()
			c.write()
			c.open()
			for _, w := range c.workers {
				c.join(w)
				for w.stream != nil && w.stream.brokenAt == 0 && (c.sendUp(w.stream) || c.sendDown(w.stream)) {
				}
				for len(w.running) > 0 {
					c.finish(w, w.running[0], false)
				}
			}
		}
	}
	for number, r := range c.gateway.requests {
		if !r.answered {
			c.fail("request %d has no answer after %d attempts and %d runs", number, r.attempt, r.runs)
		}
	}
	for _, s := range c.schedulers {
		if s.core.check(); s.core.InFlight() != 0 {
			c.fail("%d requests are left", s.core.InFlight())
		}
	}
	return c.err
}

func (c *cluster) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

func (c *cluster) someScheduler() *scheduler { return c.schedulers[c.IntN(len(c.schedulers))] }
func (c *cluster) someWorker() *node         { return c.workers[c.IntN(len(c.workers))] }

// boot starts a scheduler.
func (c *cluster) boot(s *scheduler) *scheduler {
	*s = scheduler{core: New(Config{}), streams: make(map[uint64]*stream)}
	config := &modelconfig.Config{MaxBatchSize: 2, Batching: &modelconfig.DynamicBatching{}}
	if c.batching != nil {
		config.Batching, config.Sequences = nil, c.batching
	}
	c.step(s, &Event{Kind: Configure, Model: &Model{Ref: poolModel, Config: config}})
	return s
}

// start starts a worker, which takes its lease, also from an earlier
// incarnation.
func (c *cluster) start(key string) *node {
	c.store.revision++
	w := &node{key: key, id: c.store.revision, states: make(map[uint32]*nodeState)}
	c.nodes[w.id] = w
	c.hold(w)
	return w
}

// hold has a worker take its lease.
func (c *cluster) hold(w *node) {
	c.store.revision++
	c.store.leases[w.key] = &clusterLease{w, c.now.Add(5 * time.Second)}
	c.store.log = append(c.store.log, Event{Kind: LeaseHeld, Key: w.key, Instance: infer.InstanceID{Worker: w.id}, Revision: c.store.revision})
}

func (c *cluster) step(s *scheduler, e *Event) {
	for _, d := range slices.Clone(s.core.Step(c.now, e)) {
		c.see(s, d)
	}
	for len(c.todo) > 0 {
		next := c.todo[0]
		c.todo = c.todo[1:]
		next()
	}
}

func (c *cluster) see(s *scheduler, d Decision) {
	switch d.Kind {
	case Dispatch:
		o := d.Members().Batch
		o.Requests, o.Slots = slices.Clone(o.Requests), slices.Clone(o.Slots)
		st := s.streams[o.Instance.Worker]
		if st == nil {
			c.fail("batch %d went to worker %d, which is not connected", o.ID.Number, o.Instance.Worker)
			return
		}
		st.under = append(st.under, &o)
		for _, r := range o.Requests {
			one := c.gateway.requests[r.Work.Request.Number]
			if one.sent = true; c.reached(s) {
				one.placed = st.from
			}
		}
		if st.brokenAt == 0 {
			st.down = append(st.down, &o)
		}
	case Refuse, Fail, HandOff:
		if d.Reason != "" && c.reached(s) {
			c.told(d.Item().Work, d.Reason, d.Instance.Worker)
		}
	case InstanceRetired:
		if st := s.streams[d.Instance.Worker]; st != nil && st.brokenAt == 0 {
			st.granted = false
		}
	case WorkerGone:
		if st := s.streams[d.Instance.Worker]; st != nil && st.brokenAt == 0 && st.asked {
			if slices.Contains(c.store.history.Workers, st.from.id) {
				c.fail("worker %d may exit while the record names it", st.from.id)
			}
			c.exit(st.from)
			c.left++
		}
	case Record:
		s.wants, s.history = uint64(d.A), s.core.History()
	}
}

// reached reports whether what a scheduler says comes to the gateway.
func (c *cluster) reached(s *scheduler) bool { return c.gateway.to == s && c.gateway.brokenAt == 0 }

// told is the scheduler's word on a request, as its gateway takes it, and on which
// worker it runs.
func (c *cluster) told(work infer.Work, reason errs.Reason, worker uint64) {
	r := c.gateway.requests[work.Request.Number]
	switch {
	case !r.settled && work.Attempt != r.attempt:
	case reason == errs.RequestFinished:
		if !r.sent {
			c.fail("request %d is said to have finished, and nobody has got it", work.Request.Number)
		}
		r.settled, r.answerBy = true, c.now.Add(5*time.Second)
	case reason == errs.RequestUnderway:
		r.settled = true
		if worker != 0 && !c.rules.unplaced {
			r.placed = c.node(worker)
			if c.gateway.dropped[worker] >= r.first {
				r.answerBy = c.now.Add(5 * time.Second)
			}
		}
	case reason == errs.SchedulerDeposed || reason == errs.PeerUnreachable: // it is submitted again
	default:
		r.answered = true
		c.failed(work.Request.Number)
	}
}

func (c *cluster) submit() {
	c.gateway.last++
	r := &clusterRequest{}
	if c.rules.sequences {
		c.next(r)
	}
	c.gateway.requests[c.gateway.last] = r
	c.send(c.gateway.last)
}

// send submits a request, again if it was before.
func (c *cluster) send(number uint64) {
	g, r := &c.gateway, c.gateway.requests[number]
	if g.to == nil || r.answered {
		return
	}
	if r.broken {
		r.answered = true
		return
	}
	r.attempt++
	r.first = cmp.Or(r.first, c.now)
	work := infer.Work{Request: infer.RequestID{Origin: 1, Number: number}, Attempt: r.attempt, Epoch: r.epoch}
	r.settled, r.placed, r.answerBy = false, nil, 0
	r.epoch = cmp.Or(r.epoch, g.epoch)
	if g.brokenAt == 0 {
		c.step(g.to, &Event{Kind: Submit, Item: &Item{
			Request: &infer.Request{Work: work, BatchSize: 1, Sequence: r.place}, Work: work, Model: poolModel, BatchSize: 1, Enqueued: c.now,
		}})
	}
}

// open has the gateway connect to whoever holds the pool, and submit what has no
// answer.
func (c *cluster) open() {
	g, s := &c.gateway, c.store.holder
	if g.to != nil || s == nil || s.core == nil || !s.leads {
		return
	}
	if s.epoch < g.highest {
		c.depose(s)
		return
	}
	g.to, g.epoch, g.highest, g.brokenAt = s, s.epoch, s.epoch, 0
	numbers := slices.Sorted(maps.Keys(g.requests))
	if c.rules.disordered {
		c.Shuffle(len(numbers), func(i, j int) { numbers[i], numbers[j] = numbers[j], numbers[i] })
	}
	for _, number := range numbers {
		c.send(number)
	}
}

func (c *cluster) breakSession() {
	if g := &c.gateway; g.to != nil && g.brokenAt == 0 {
		g.brokenAt = c.now
	}
}

// closeSession is when both ends of a broken session know of it.
func (c *cluster) closeSession() {
	g := &c.gateway
	s := g.to
	g.to, g.since = nil, c.now
	if s.core != nil && s.leads && s.epoch == g.epoch {
		c.step(s, &Event{Kind: GatewayDisconnected, Origin: 1})
	}
}

// lead has a scheduler take the pool if that is free.
func (c *cluster) lead() {
	s := c.someScheduler()
	switch free := c.store.holder == nil || c.store.expires <= c.now; {
	case s.core == nil || s.cut || !free:
	case s.leads: // it was away, and nobody else holds the pool
		c.store.holder, c.store.expires = s, c.now.Add(2*time.Second)
	default:
		c.store.revision++
		s.leads, s.epoch, s.wants = true, c.store.revision, 0
		c.store.holder, c.store.expires = s, c.now.Add(2*time.Second)
		h := Inherit(c.store.history, s.epoch)
		if c.rules.unrecorded {
			h = History{}
		}
		c.put(s, h)
		c.read(s)
		c.step(s, &Event{Kind: BecomeLeader, Epoch: s.epoch, History: h, Until: c.now.Add(5 * time.Second)})
	}
}

// put writes the history.
func (c *cluster) put(s *scheduler, h History) {
	c.store.revision++
	c.store.history, c.store.epoch, c.store.written = &h, s.epoch, c.store.revision
	s.known = c.store.revision
}

// write has a scheduler bring what it records into the store.
func (c *cluster) write() { c.writeOf(c.someScheduler()) }

func (c *cluster) writeOf(s *scheduler) {
	if s.core == nil || s.cut || s.wants == 0 {
		return
	}
	version := s.wants
	switch {
	case c.rules.unrecorded:
	case c.store.epoch > s.epoch:
		c.depose(s)
		return
	case c.store.written != s.known: // an earlier write of its own was not confirmed
		s.known = c.store.written
		return
	case c.IntN(8) == 0: // nor is this one
		before := s.known
		c.put(s, s.history)
		s.known = before
		return
	default:
		c.put(s, s.history)
	}
	s.wants = 0
	c.step(s, &Event{Kind: Recorded, Version: version})
}

// watch brings a scheduler the next change of a lease.
func (c *cluster) watch() {
	if s := c.someScheduler(); s.core != nil && !s.cut && s.seen < len(c.store.log) {
		s.seen++
		c.step(s, &c.store.log[s.seen-1])
	}
}

// read brings a scheduler all of them.
func (c *cluster) read(s *scheduler) {
	for s.core != nil && s.seen < len(c.store.log) {
		s.seen++
		c.step(s, &c.store.log[s.seen-1])
	}
}

// depose has a scheduler step down that has heard of a later one.
func (c *cluster) depose(s *scheduler) {
	s.leads, s.wants = false, 0
	c.step(s, &Event{Kind: StepDown})
	if c.store.holder == s {
		c.store.holder = nil
	}
	c.part(s)
}

// part ends a scheduler's streams, of which the others have to hear.
func (c *cluster) part(s *scheduler) {
	for _, st := range s.streams {
		st.brokenAt = cmp.Or(st.brokenAt, c.now)
	}
	for _, w := range c.workers {
		if st := w.stream; st != nil && st.to == s {
			st.brokenAt = cmp.Or(st.brokenAt, c.now)
		}
	}
	s.streams = make(map[uint64]*stream)
	if c.gateway.to == s {
		c.gateway.brokenAt = cmp.Or(c.gateway.brokenAt, c.now)
	}
}

func (c *cluster) stepDown() {
	if s := c.someScheduler(); s.core != nil && s.leads && c.IntN(3) == 0 {
		c.depose(s)
	}
}

func (c *cluster) killScheduler() {
	if s := c.someScheduler(); s.core != nil && c.IntN(2) == 0 {
		s.core, s.leads = nil, false
		c.part(s)
	}
}

func (c *cluster) bootScheduler() {
	if s := c.someScheduler(); s.core == nil {
		c.boot(s)
	}
}

func (c *cluster) cutScheduler() { s := c.someScheduler(); s.cut = !s.cut }
func (c *cluster) cutWorker()    { w := c.someWorker(); w.cut = !w.cut }

// killWorker ends a worker with all that it runs. Its next incarnation comes at
// once or later.
func (c *cluster) killWorker() {
	i := c.IntN(len(c.workers))
	w := c.workers[i]
	if !w.dead && c.IntN(2) == 0 {
		c.die(w)
	}
	if w.dead && c.IntN(2) == 0 {
		c.workers[i] = c.start(w.key)
	}
}

func (c *cluster) die(w *node) {
	w.dead, w.diedAt, w.running = true, c.now, nil
	if w.stream != nil {
		w.stream.brokenAt = cmp.Or(w.stream.brokenAt, c.now)
	}
}

// leave has a worker stop in good order: its scheduler lets its instance go first.
func (c *cluster) leave() {
	w := c.someWorker()
	switch {
	case w.dead:
		return
	case w.leaving:
		c.goOnLeaving(w)
		return
	}
	w.leaving = true
	st := w.stream
	if st != nil && st.brokenAt == 0 && st.granted {
		st.up = append(st.up, &Event{Kind: Retire, Instance: infer.InstanceID{Worker: w.id}})
	}
	if st == nil || c.IntN(2) == 0 {
		return
	}
	for range 10 { // while nothing else happens
		for c.sendUp(st) || c.sendDown(st) {
		}
		for len(w.running) > 0 {
			c.finish(w, w.running[0], c.rules.loses && c.IntN(6) == 0)
		}
		c.goOnLeaving(w)
		c.writeOf(st.to)
	}
}

// goOnLeaving has a worker that has nothing left report its leave, if its answers
// are acknowledged, or exit without it.
func (c *cluster) goOnLeaving(w *node) {
	st := w.stream
	switch {
	case w.dead || !w.leaving || len(w.running) > 0 || st != nil && (st.granted || len(st.down) > 0):
	case c.rules.exits && c.IntN(4) == 0:
		c.exit(w)
	case st == nil || st.brokenAt != 0 || st.asked || w.dropped && !c.rules.hasty:
	default:
		st.asked = true
		st.up = append(st.up, &Event{Kind: WorkerLost, Instance: infer.InstanceID{Worker: w.id}, Released: true})
	}
}

// exit ends a worker that releases its lease.
func (c *cluster) exit(w *node) {
	c.die(w)
	if l := c.store.leases[w.key]; l != nil && l.worker == w && !w.cut {
		delete(c.store.leases, w.key)
		c.store.revision++
		c.store.log = append(c.store.log, Event{Kind: LeaseEnded, Key: w.key, Revision: c.store.revision, Released: true})
	}
}

// node is the incarnation of a worker, also one that is dead.
func (c *cluster) node(id uint64) *node { return c.nodes[id] }

// killBoth ends a worker and the scheduler that has it at once.
func (c *cluster) killBoth() {
	w := c.someWorker()
	if st := w.stream; st != nil && !w.dead && st.to.core != nil && c.IntN(2) == 0 {
		c.die(w)
		st.to.core, st.to.leads = nil, false
		c.part(st.to)
	}
}

func (c *cluster) connect() { c.join(c.someWorker()) }

// join has a worker without a stream connect to whoever holds the pool.
func (c *cluster) join(w *node) {
	s := c.store.holder
	if w.dead || w.cut || w.stream != nil || s == nil || s.core == nil || !s.leads {
		return
	}
	if s.epoch < w.highest {
		c.depose(s)
		return
	}
	w.highest = s.epoch
	st := &stream{to: s, from: w}
	w.stream = st
	held, id := &infer.Held{Epoch: w.highest, Started: w.started.Started()}, infer.InstanceID{Worker: w.id}
	for _, o := range w.running {
		r := infer.Running{Batch: o.ID, Instance: o.Instance}
		for _, request := range o.Requests {
			r.Units = append(r.Units, request.Work)
		}
		held.Running = append(held.Running, r)
	}
	held.Sequences = c.held(w)
	st.up = []*Event{{Kind: WorkerConnected, Instance: id, Held: held}}
	if st.granted = !w.leaving; st.granted {
		st.up = append(st.up, &Event{Kind: Granted, Instance: id, Grant: &infer.Grant{Instance: id, Model: poolModel, Credits: 2 - len(w.running)}})
	}
}

func (c *cluster) report() {
	if w := c.someWorker(); w.stream != nil {
		c.sendUp(w.stream)
	}
}

// sendUp brings the next message of a worker to its scheduler.
func (c *cluster) sendUp(st *stream) bool {
	if st.brokenAt != 0 || len(st.up) == 0 {
		return false
	}
	e := st.up[0]
	st.up = st.up[1:]
	switch e.Kind {
	case WorkerConnected:
		st.to.streams[st.from.id] = st
	case InstanceFree:
		st.under = slices.DeleteFunc(st.under, func(o *infer.Batch) bool { return o.ID == e.Ended.Batch })
	}
	c.step(st.to, e)
	return true
}

func (c *cluster) deliver() {
	if w := c.someWorker(); w.stream != nil {
		c.sendDown(w.stream)
	}
}

// sendDown brings the next batch to a worker, which begins it.
func (c *cluster) sendDown(st *stream) bool {
	if st.brokenAt != 0 || len(st.down) == 0 || st.from.dead {
		return false
	}
	o := st.down[0]
	st.down = st.down[1:]
	if st.from.running = append(st.from.running, o); len(st.from.running) > 2 || c.rules.sequences && len(st.from.running) > 1 {
		c.fail("worker %d got more batches than its credits", st.from.id)
	}
	for i, r := range o.Requests {
		if c.rules.sequences {
			c.apply(st, r.Work.Request.Number, &o.Slots[i])
		}
		st.from.started.Add(r.Work.Request)
		one := c.gateway.requests[r.Work.Request.Number]
		if one.runs++; one.runs > 1 {
			c.fail("request %d runs twice", r.Work.Request.Number)
		}
	}
	return true
}

func (c *cluster) finishOne() {
	if w := c.someWorker(); len(w.running) > 0 {
		c.finish(w, w.running[c.IntN(len(w.running))], c.rules.loses && c.IntN(6) == 0)
	}
}

// finish ends a batch: its answers go to the gateway, unless they are lost with
// a connection, of which the gateway hears; its completion to the scheduler.
func (c *cluster) finish(w *node, o *infer.Batch, lost bool) {
	w.running = slices.DeleteFunc(w.running, func(other *infer.Batch) bool { return other == o })
	for _, s := range o.Slots {
		if state := w.states[s.Index]; s.Sequence.End {
			delete(w.states, s.Index)
		} else if state != nil {
			state.until = c.now.Add(sequenceIdle)
		}
	}
	for _, r := range o.Requests {
		one := c.gateway.requests[r.Work.Request.Number]
		if !lost {
			one.answered = true
		}
	}
	if lost {
		c.drop(w)
	}
	if st := w.stream; st != nil && st.brokenAt == 0 {
		st.up = append(st.up, &Event{Kind: InstanceFree, Ended: &infer.InstanceFree{
			Batch: o.ID, Instance: o.Instance, Credits: 1, Executions: 1, Timing: infer.Timing{Start: c.now - 1, Done: c.now},
		}})
	}
}

// drop has answers of a worker be lost, of which the gateway hears with its next
// stream: the worker was long without one.
func (c *cluster) drop(w *node) {
	w.dropped = true
	c.gateway.dropped[w.id] = c.now
	for _, r := range c.gateway.requests {
		if r.placed == w && !r.answered {
			r.answerBy = c.now.Add(5 * time.Second)
		}
	}
}

func (c *cluster) breakStream() {
	if w := c.someWorker(); w.stream != nil && c.IntN(2) == 0 {
		w.stream.brokenAt = cmp.Or(w.stream.brokenAt, c.now)
	}
}

func (c *cluster) noticeStream() {
	if w := c.someWorker(); w.stream != nil && w.stream.brokenAt != 0 {
		c.notice(w.stream)
	}
}

// notice has both ends of a broken stream hear of it, one of them maybe later.
func (c *cluster) notice(st *stream) {
	if st.from.stream == st {
		st.from.stream = nil
	}
	if s := st.to; s.core != nil && s.streams[st.from.id] == st {
		delete(s.streams, st.from.id)
		c.step(s, &Event{
			Kind: WorkerDisconnected, Instance: infer.InstanceID{Worker: st.from.id}, Batches: st.under, Until: c.now.Add(6 * time.Second),
		})
	}
}

func (c *cluster) wait() { c.pass(time.Duration(1+c.IntN(3000)) * time.Millisecond) }

// pass lets time pass: leases are renewed or end, what is broken is noticed
// within 5 s, and what is in the store seen within 3 s.
func (c *cluster) pass(d time.Duration) {
	c.now = c.now.Add(d)
	if s := c.store.holder; s != nil && s.core != nil && s.leads && !s.cut && c.store.expires > c.now.Add(-d) {
		c.store.expires = c.now.Add(2 * time.Second)
	}
	for _, key := range slices.Sorted(maps.Keys(c.store.leases)) {
		switch l := c.store.leases[key]; {
		case !l.worker.dead && !l.worker.cut:
			l.expires = c.now.Add(5 * time.Second)
		case l.expires <= c.now:
			delete(c.store.leases, key)
			c.store.revision++
			c.store.log = append(c.store.log, Event{Kind: LeaseEnded, Key: key, Revision: c.store.revision})
		}
	}
	for _, w := range c.workers {
		if !w.dead && !w.cut && c.store.leases[w.key] == nil {
			c.hold(w)
		}
		if st := w.stream; st != nil && st.brokenAt != 0 && c.now.Sub(st.brokenAt) > 5*time.Second {
			c.notice(st)
		}
	}
	for _, s := range c.schedulers {
		for _, id := range slices.Sorted(maps.Keys(s.streams)) {
			if st := s.streams[id]; st != nil && st.brokenAt != 0 && c.now.Sub(st.brokenAt) > 5*time.Second {
				c.notice(st)
			}
		}
		if s.core == nil {
			continue
		}
		if !s.cut && d > 2*time.Second {
			c.read(s)
		}
		if s.leads && !s.cut && c.store.holder != nil && c.store.holder != s && c.store.holder.epoch > s.epoch {
			c.depose(s)
		}
		c.step(s, &Event{Kind: Tick})
	}
	c.abandon()
}

// abandon ends the requests that a gateway waits for no longer.
func (c *cluster) abandon() {
	g := &c.gateway
	if g.to != nil && g.brokenAt != 0 && c.now.Sub(g.brokenAt) > 5*time.Second {
		c.closeSession()
	}
	for _, number := range slices.Sorted(maps.Keys(g.requests)) {
		r := g.requests[number]
		gone := r.placed != nil && r.placed.dead && c.now.Sub(r.placed.diedAt) > 11*time.Second
		alone := g.to == nil && c.now.Sub(g.since) > 10*time.Second
		if over := gone || alone || r.answerBy != 0 && r.answerBy <= c.now; over && !r.answered {
			r.answered = true
			c.failed(number)
		}
	}
}
