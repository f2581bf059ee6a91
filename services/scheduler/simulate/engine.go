package simulate

import (
	"cmp"
	"container/heap"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/scheduler/core"
)

// Way is how long a batch is on its way besides its execution: from its dispatch
// until an instance that is free begins it, and from its end until the scheduler
// knows of that.
type Way struct {
	Before, After time.Duration
	// before and after are those of a log; if there are some, they are drawn from.
	before, after []sample
}

// draw is one of a log's ways near a time, or the constant.
func (e *engine) draw(constant time.Duration, list []sample) time.Duration {
	if len(list) == 0 {
		return constant
	}
	return pick(list, e.rng, e.near(e.now))
}

// near is t where what is drawn is to be of the same time, and else 0.
func (e *engine) near(t mono.Time) mono.Time {
	if e.sameTime {
		return t
	}
	return 0
}

// policy decides, and is told what happens in the order of time.
type policy interface {
	// change brings an event of the workload's.
	change(*core.Event)
	// arrive brings a request by its index, cancel says that its client has gone.
	arrive(i int32)
	cancel(i int32)
	// free says that a batch is over, and its instance may have another.
	free(*batch)
	// tick says that the time of next has come; 0 is never.
	tick()
	next() mono.Time
	// idle reports whether nothing waits or runs.
	idle() bool
	// decisions is how many there were.
	decisions() int
}

// engine is the world of a policy: time, instances and what becomes of requests.
type engine struct {
	*Workload
	costs     *Costs
	sameTime  bool // of the costs and the workload
	way       Way
	rng       *rand.Rand
	now       mono.Time
	results   []result
	usage     usage
	instances map[infer.InstanceID]*instance
	running   timeline
	armed     uint64
	spare     []*batch
	policy    policy
}

// result is what became of a request.
type result struct {
	end     mono.Time // 0 is not yet
	outcome outcome
	reason  errs.Reason
}

// outcome is how a request ended.
type outcome uint8

const (
	unfinished outcome = iota
	executed           // in time or not
	refused            // without having run
	failed
)

// usage is how the devices' time went.
type usage struct {
	batches      int
	requests     int // in them
	busy, inTime time.Duration
}

// instance runs its batches one after another.
type instance struct {
	id     infer.InstanceID
	model  int32
	device string // its kind
	costs  *shapes
	ahead  int // how many batches it takes beside the one that runs
	under  int // how many it has, as far as the policy knows
	waits  []*batch
	runs   *batch
	lost   bool
}

// batch is what runs together.
type batch struct {
	at       mono.Time // of what comes next of it
	armed    uint64    // breaks ties
	id       infer.BatchID
	instance *instance
	units    []int32 // indices of arrivals
	size     int64
	shape    uint8
	latest   mono.Time // start; 0 is any
	cost     time.Duration
	start    mono.Time
	ran      bool
	ended    bool // and the scheduler is to know
}

// agenda is what is to come of the workload itself.
type agenda struct {
	changes  []Change
	arrivals []Arrival
	cancels  []int32 // indices of arrivals, in the order of their cancellations
}

func newAgenda(w *Workload) *agenda {
	a := &agenda{changes: w.Changes, arrivals: w.Arrivals}
	for i := range w.Arrivals {
		if w.Arrivals[i].Canceled != 0 {
			a.cancels = append(a.cancels, int32(i))
		}
	}
	slices.SortStableFunc(a.cancels, func(i, j int32) int { return cmp.Compare(w.Arrivals[i].Canceled, w.Arrivals[j].Canceled) })
	return a
}

// What comes next. Among simultaneous events, the first of these goes first.
const (
	nothing = iota
	aChange
	anEnd
	anArrival
	aCancellation
	aTick
)

// next returns what comes next, and when.
func (e *engine) next(a *agenda) (at mono.Time, what int) {
	earlier := func(t mono.Time, kind int) {
		if what == nothing || t < at {
			at, what = t, kind
		}
	}
	if len(a.changes) > 0 {
		earlier(a.changes[0].At, aChange)
	}
	if len(e.running) > 0 {
		earlier(e.running[0].at, anEnd)
	}
	if len(a.arrivals) > 0 {
		earlier(a.arrivals[0].At, anArrival)
	}
	if len(a.cancels) > 0 {
		earlier(e.Arrivals[a.cancels[0]].Canceled, aCancellation)
	}
	if t := e.policy.next(); t != 0 {
		earlier(max(t, e.now), aTick)
	}
	return at, what
}

// run simulates a workload under a policy.
func (e *engine) run() {
	a := newAgenda(e.Workload)
	for len(a.arrivals) > 0 || len(e.running) > 0 || !e.policy.idle() {
		at, what := e.next(a)
		e.now = max(e.now, at)
		switch what {
		case nothing:
			return
		case aChange:
			e.change(&a.changes[0].Event)
			a.changes = a.changes[1:]
		case anEnd:
			e.advance(heap.Pop(&e.running).(*batch))
		case anArrival:
			e.policy.arrive(int32(len(e.Arrivals) - len(a.arrivals)))
			a.arrivals = a.arrivals[1:]
		case aCancellation:
			if i := a.cancels[0]; e.results[i].outcome == unfinished {
				e.policy.cancel(i)
			}
			a.cancels = a.cancels[1:]
		case aTick:
			e.policy.tick()
		}
	}
}

// change adds or removes instances, and notifies the policy.
func (e *engine) change(ev *core.Event) {
	switch ev.Kind {
	case core.Granted:
		kind, _, _ := strings.Cut(ev.Grant.Device, ":")
		e.instances[ev.Grant.Instance] = &instance{
			id: ev.Grant.Instance, model: e.modelOf(ev.Grant.Model), device: kind, ahead: ev.Grant.Pipelined,
			costs: e.costs.of[device{ev.Grant.Model.ID().Key(), kind}],
		}
	case core.WorkerLost:
		for id, in := range e.instances {
			if id.Worker == ev.Instance.Worker {
				in.lost = true
				delete(e.instances, id)
			}
		}
	}
	e.policy.change(ev)
}

func (e *engine) modelOf(ref infer.ModelRef) int32 {
	return int32(slices.IndexFunc(e.Models, func(m core.Model) bool { return m.Ref == ref }))
}

// newBatch returns an empty batch.
func (e *engine) newBatch() *batch {
	if n := len(e.spare); n > 0 {
		b := e.spare[n-1]
		e.spare = e.spare[:n-1]
		*b = batch{units: b.units[:0]}
		return b
	}
	return new(batch)
}

// dispatch sends a batch to its instance.
func (e *engine) dispatch(b *batch) {
	in := b.instance
	in.under++
	for _, i := range b.units {
		a := &e.Arrivals[i]
		b.size += a.BatchSize
		b.shape = max(b.shape, shape(e.Models[a.Model].Config, a.Inputs))
	}
	b.start = e.now.Add(e.draw(e.way.Before, e.way.before))
	if in.runs != nil {
		in.waits = append(in.waits, b)
		return
	}
	e.begin(b)
}

// begin makes an instance start a batch. It skips the execution if nobody waits for the batch any more.
func (e *engine) begin(b *batch) {
	b.instance.runs = b
	b.ran = b.latest == 0 || b.start <= b.latest
	if b.ran {
		b.cost = b.instance.costs.draw(e.rng, e.near(b.start), b.shape, b.size)
	}
	e.arm(b, b.start.Add(b.cost))
}

func (e *engine) arm(b *batch, at mono.Time) {
	e.armed++
	b.at, b.armed = at, e.armed
	heap.Push(&e.running, b)
}

// advance ends an execution, or notifies the scheduler of its end.
func (e *engine) advance(b *batch) {
	in := b.instance
	switch {
	case in.lost: // the policy knows
	case b.ended:
		in.under--
		e.policy.free(b)
		e.spare = append(e.spare, b)
	default:
		e.account(b)
		b.ended = true
		e.arm(b, e.now.Add(e.draw(e.way.After, e.way.after)))
		in.runs = nil
		if len(in.waits) > 0 {
			next := in.waits[0]
			in.waits = in.waits[1:]
			next.start = max(next.start, e.now)
			e.begin(next)
		}
	}
}

// account records the ends of a batch's requests, and how its time was used.
func (e *engine) account(b *batch) {
	inTime := int64(0)
	for _, i := range b.units {
		r, a := &e.results[i], &e.Arrivals[i]
		if r.outcome != unfinished {
			continue
		}
		*r = result{end: e.now, outcome: executed}
		if inTimeFor(a, e.now) {
			inTime += a.BatchSize
		}
	}
	e.usage.add(b.cost, len(b.units), inTime, b.size)
}

// inTimeFor reports whether somebody still waits for an answer at t.
func inTimeFor(a *Arrival, t mono.Time) bool {
	last := a.patience()
	return last == 0 || t <= last
}

// add counts an execution of a batch, inTime of whose size was in time.
func (u *usage) add(took time.Duration, requests int, inTime, size int64) {
	if took <= 0 || size <= 0 {
		return
	}
	u.batches++
	u.requests += requests
	u.busy += took
	u.inTime += time.Duration(float64(took) * float64(inTime) / float64(size))
}

// end records that a request ends without an execution.
func (e *engine) end(i int32, o outcome, reason errs.Reason) {
	if r := &e.results[i]; r.outcome == unfinished {
		*r = result{end: e.now, outcome: o, reason: reason}
	}
}

// timeline orders batches by the time of their next event.
type timeline []*batch

func (t timeline) Len() int { return len(t) }

func (t timeline) Less(i, j int) bool {
	return t[i].at < t[j].at || t[i].at == t[j].at && t[i].armed < t[j].armed
}
func (t timeline) Swap(i, j int) { t[i], t[j] = t[j], t[i] }
func (t *timeline) Push(x any)   { *t = append(*t, x.(*batch)) }

// Pop removes the last batch.
func (t *timeline) Pop() any {
	last := len(*t) - 1
	b := (*t)[last]
	(*t)[last] = nil
	*t = (*t)[:last]
	return b
}
