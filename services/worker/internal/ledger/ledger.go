// Package ledger keeps what a worker runs and what it recently finished, so
// that a new scheduler can learn what must not be run again, and tests can
// check that nothing ran twice.
//
// Its memory is bounded: the finished executions are a ring, the running ones
// are as many as the instances take. Records are recycled, so that keeping
// the ledger allocates nothing in steady state.
package ledger

import (
	"slices"
	"sync"

	"github.com/nereid-serving/nereid/libs/infer"
)

// Execution is one order that an instance took up.
type Execution struct {
	// Order is the scheduler's number for it, unique in Epoch.
	Order, Epoch uint64
	Instance     infer.InstanceID
	Model        infer.ModelRef
	// Work are the requests, by identity.
	Work []infer.Work
	// Outcomes has one entry for each request; it is empty while the
	// execution runs.
	Outcomes []infer.Outcome
	// Executions is how often the model ran.
	Executions int
	// Timing is complete once the execution has finished; before that only
	// its Start counts.
	Timing infer.Timing
}

// Record is a running execution, to be given to [Ledger.End] once.
type Record struct {
	execution Execution
	ids       []string // the clients' own for its work, where there is a log
}

// Ledger is safe for concurrent use.
type Ledger struct {
	mu       sync.Mutex
	running  []*Record // guarded by mu
	finished []*Record // a ring once full; guarded by mu
	next     int       // where the ring's next record goes; guarded by mu
	spare    []*Record // guarded by mu
	log      *Log      // may be nil
}

// New makes a ledger that remembers the last keep finished executions, at
// least one.
func New(keep int) *Ledger {
	return Logged(keep, nil)
}

// Logged makes a ledger as [New] does, that writes to a log too.
func Logged(keep int, log *Log) *Ledger {
	return &Ledger{finished: make([]*Record, 0, max(keep, 1)), log: log}
}

// Begin enters an order that is being taken up. It copies what it keeps.
func (l *Ledger) Begin(o *infer.Order, model infer.ModelRef, timing infer.Timing) *Record {
	r := l.begin(o, model, timing)
	l.log.write("begin", r)
	return r
}

func (l *Ledger) begin(o *infer.Order, model infer.ModelRef, timing infer.Timing) *Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.blank()
	e := &r.execution
	e.Order, e.Epoch, e.Instance, e.Model, e.Timing, e.Executions = o.ID, o.Epoch, o.Instance, model, timing, 0
	e.Work, e.Outcomes, r.ids = e.Work[:0], e.Outcomes[:0], r.ids[:0]
	for _, request := range o.Requests {
		e.Work = append(e.Work, request.Work)
		if l.log != nil {
			r.ids = append(r.ids, request.ID)
		}
	}
	l.running = append(l.running, r)
	return r
}

func (l *Ledger) blank() *Record {
	if n := len(l.spare); n > 0 {
		r := l.spare[n-1]
		l.spare = l.spare[:n-1]
		return r
	}
	return new(Record)
}

// End moves a record to the finished ones, of which the oldest is forgotten.
// It copies what it keeps of done.
func (l *Ledger) End(r *Record, done *infer.Completion) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.execution.Outcomes = append(r.execution.Outcomes[:0], done.Outcomes...)
	r.execution.Executions, r.execution.Timing = done.Executions, done.Timing
	l.log.write("end", r)
	if at := slices.Index(l.running, r); at >= 0 {
		last := len(l.running) - 1
		l.running[at], l.running[last] = l.running[last], nil
		l.running = l.running[:last]
	}
	if len(l.finished) < cap(l.finished) {
		l.finished = append(l.finished, r)
		return
	}
	l.spare = append(l.spare, l.finished[l.next])
	l.finished[l.next] = r
	l.next = (l.next + 1) % len(l.finished)
}

// Running returns copies of the running executions, in no order.
func (l *Ledger) Running() []Execution {
	l.mu.Lock()
	defer l.mu.Unlock()
	return copies(make([]Execution, 0, len(l.running)), l.running)
}

// Finished returns copies of the remembered executions, the oldest first.
func (l *Ledger) Finished() []Execution {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]Execution, 0, len(l.finished))
	list = copies(list, l.finished[l.next:])
	return copies(list, l.finished[:l.next])
}

func copies(list []Execution, records []*Record) []Execution {
	for _, r := range records {
		e := r.execution
		e.Work, e.Outcomes = slices.Clone(e.Work), slices.Clone(e.Outcomes)
		list = append(list, e)
	}
	return list
}
