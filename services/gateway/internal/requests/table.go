package requests

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
)

// shards is the number of locks that the table is split into: a power of two well above the number of cores.
const shards = 64

// Receiver receives the responses of one request.
type Receiver interface {
	// Receive takes a response over, and does not block. It reports whether it was the last one: it is final,
	// or the receiver has ended the request instead.
	Receive(*infer.Response) (last bool)
}

// Table contains the requests of one gateway. It is safe for concurrent use.
type Table struct {
	origin   uint64                // set before the first request
	cancel   func(infer.RequestID) // set before the first request
	last     atomic.Uint64
	inFlight atomic.Int64
	shards   [shards]shard
	queues   queues
	arrives  func(worker uint64, since mono.Time) bool // set before the first request; nil means never

	mu      sync.Mutex
	drained chan struct{} // closed when no request is left; nil while nobody waits for that; guarded by mu
	// workers are the available workers, and when each last dropped answers for the gateway; guarded by mu.
	workers map[uint64]mono.Time
}

type shard struct {
	mu      sync.Mutex
	entries map[uint64]*entry // by request number; guarded by mu
}

// entry is one request.
type entry struct {
	table   *Table
	id      infer.RequestID
	attempt uint32          // the attempt that the client's side knows
	of      *infer.ModelRef // the version that it is for; immutable
	next    Receiver
	slot    *slot // nil if its responses need no order

	mu         sync.Mutex
	ended      bool        // next has received the last response; guarded by mu
	submission *submission // nil while no other process has the request; guarded by mu
}

// New makes a table for the gateway incarnation origin.
func New(origin uint64) *Table {
	t := &Table{origin: origin, workers: make(map[uint64]mono.Time)}
	for i := range t.shards {
		t.shards[i].entries = make(map[uint64]*entry)
	}
	return t
}

// SetOrigin sets the gateway's incarnation if New could not know it. Call it before the first request.
func (t *Table) SetOrigin(origin uint64) { t.origin = origin }

// OnRefusal sets the function that is called with each request that its receiver ends before the final
// response. Call it before the first request is opened.
func (t *Table) OnRefusal(cancel func(infer.RequestID)) { t.cancel = cancel }

// OnOverdue sets a function that is asked before a request is given up whose answer is overdue: whether an
// answer from a worker has been arriving since the given time; worker 0 means any. Call it before the first
// request is opened.
func (t *Table) OnOverdue(arrives func(worker uint64, since mono.Time) bool) { t.arrives = arrives }

// NextID returns an identity for a new request.
func (t *Table) NextID() infer.RequestID {
	return infer.RequestID{Origin: t.origin, Number: t.last.Add(1)}
}

// InFlight returns the number of requests without a final response.
func (t *Table) InFlight() int64 { return t.inFlight.Load() }

// Open enters a request for a model version. From now on its responses go to next, one after another and none
// after the final one. next owns them and must not block. of must not change afterwards.
func (t *Table) Open(w infer.Work, of *infer.ModelRef, next Receiver) {
	t.enter(&entry{table: t, id: w.Request, attempt: w.Attempt, of: of, next: next})
}

// OpenInOrder is like Open, but the request's responses wait until all requests for the same generation that
// were opened earlier with OpenInOrder have freed their slots. A response that is not a result of the model
// does not wait: see [infer.Response.Immediate] and [Table.Finish]. The caller frees the slot after the final
// response.
func (t *Table) OpenInOrder(w infer.Work, of *infer.ModelRef, next Receiver) Slot {
	e := &entry{table: t, id: w.Request, attempt: w.Attempt, of: of, next: next, slot: &slot{generation: *of}}
	t.queues.join(e)
	t.enter(e)
	return Slot{e}
}

func (t *Table) enter(e *entry) {
	s := t.shard(e.id)
	t.inFlight.Add(1)
	s.mu.Lock()
	s.entries[e.id.Number] = e
	s.mu.Unlock()
}

// Respond passes a response of a worker, or of a scheduler in the same process, to whoever waits for it, in its
// order. If the response does not count, for example because its request is over, it is released.
func (t *Table) Respond(r *infer.Response) { t.answer(r, (*entry).respond) }

// answer passes a response to its entry: it calls take with the entry's lock held, and cancels the request if
// its receiver ends it.
func (t *Table) answer(r *infer.Response, take func(*entry, *infer.Response) (refused bool)) {
	e := t.find(r.Work.Request)
	if e == nil {
		r.Release()
		return
	}
	e.mu.Lock()
	refused := take(e, r)
	e.mu.Unlock()
	if refused {
		t.refused(e)
	}
}

// refused cancels a request that its receiver has ended. No lock is held.
func (t *Table) refused(e *entry) {
	if t.cancel != nil {
		t.cancel(e.id)
	}
}

// Finish ends a request for its client immediately, with a final response of the gateway's own that replaces
// responses still waiting for their order. It reports whether the request had not ended before; otherwise the
// response is released.
func (t *Table) Finish(r *infer.Response) bool {
	e := t.find(r.Work.Request)
	if e == nil {
		r.Release()
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended || e.attempt != r.Work.Attempt {
		r.Release()
		return false
	}
	e.slot.drop()
	e.receive(r)
	return true
}

// find returns the entry of a request, or nil if it is over.
func (t *Table) find(id infer.RequestID) *entry {
	s := t.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[id.Number]; e != nil && e.id == id {
		return e
	}
	return nil
}

// all returns the entries, in any order.
func (t *Table) all() (list []*entry) {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		for _, e := range s.entries {
			list = append(list, e)
		}
		s.mu.Unlock()
	}
	return list
}

// respond handles a response of a worker, or of a scheduler in this process. The caller holds mu.
func (e *entry) respond(r *infer.Response) (refused bool) {
	if e.submission != nil {
		return e.respondSubmitted(r)
	}
	if r.Work.Attempt != e.attempt {
		r.Release()
		return false
	}
	return e.deliver(r)
}

// deliver passes a response to the client's side, now or when its turn comes, or releases it if that side has
// ended. It reports whether the receiver has ended the request before its final response. The caller holds mu,
// so that responses do not overlap and only one of two racing final ones gets through.
func (e *entry) deliver(r *infer.Response) (refused bool) {
	final := r.Final
	switch s := e.slot; {
	case e.ended || s != nil && s.final:
		r.Release()
		return false
	case s == nil || s.first:
	case r.Immediate:
		s.drop()
	default:
		if r = s.keep(r); r == nil {
			return false
		}
	}
	return e.receive(r) && !final
}

// receive passes a response to the receiver, and reports whether it was the last one. The caller holds mu.
func (e *entry) receive(r *infer.Response) (last bool) {
	if e.ended = e.next.Receive(r); e.ended {
		e.removeIfOver()
		e.table.oneLess()
	}
	return e.ended
}

// removeIfOver removes the entry once neither its client nor another process needs it. The caller holds mu.
func (e *entry) removeIfOver() {
	if !e.ended || e.submission != nil {
		return
	}
	s := e.table.shard(e.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.entries, e.id.Number)
}

func (t *Table) oneLess() {
	if t.inFlight.Add(-1) > 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closeIfEmpty()
}

// Drain returns when every request has had its final response, or with the context's error.
func (t *Table) Drain(ctx context.Context) error {
	t.mu.Lock()
	if t.drained == nil {
		t.drained = make(chan struct{})
	}
	drained := t.drained
	t.closeIfEmpty()
	t.mu.Unlock()
	select {
	case <-drained:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// closeIfEmpty is called with mu held.
func (t *Table) closeIfEmpty() {
	if t.drained == nil || t.inFlight.Load() > 0 {
		return
	}
	close(t.drained)
	t.drained = nil
}

// Versions returns how many model versions have requests in the table.
func (t *Table) Versions() int {
	versions := make(map[infer.ModelRef]struct{})
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		for _, e := range s.entries {
			versions[*e.of] = struct{}{}
		}
		s.mu.Unlock()
	}
	return len(versions)
}

func (t *Table) shard(id infer.RequestID) *shard { return &t.shards[id.Number%shards] }
