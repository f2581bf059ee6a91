// Package pending holds the gateway's table of requests that have no final
// response yet. The table is the only finalizer: whatever responds, the model,
// the scheduler's refusal, a deadline, a cancellation, goes through it, and
// each request gets exactly one final response.
package pending

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/nereid-serving/nereid/libs/infer"
)

// shards spread the table's locks; a power of two well above the cores that
// work on it.
const shards = 64

// Receiver receives the responses of one request.
type Receiver interface {
	// Receive takes a response over, and does not block. It reports whether it was
	// the last: it is final, or the receiver has ended the request in its place.
	Receive(*infer.Response) (last bool)
}

// Table is safe for concurrent use.
type Table struct {
	origin   uint64
	cancel   func(infer.RequestID) // set before the first request is opened
	last     atomic.Uint64
	inFlight atomic.Int64
	shards   [shards]shard
	fifos    fifos

	mu      sync.Mutex
	drained chan struct{} // closed when draining and empty; nil before; guarded by mu
}

type shard struct {
	mu      sync.Mutex
	entries map[uint64]*entry // by request number; guarded by mu
}

// entry is one request without a final response.
type entry struct {
	id      infer.RequestID
	attempt uint32
	next    Receiver
	slot    *fifoSlot // nil if the response waits for no other

	mu    sync.Mutex
	ended bool // guarded by mu, or with a slot by the queues' lock
}

// New makes a table for the gateway incarnation origin.
func New(origin uint64) *Table {
	t := &Table{origin: origin}
	for i := range t.shards {
		t.shards[i].entries = make(map[uint64]*entry)
	}
	return t
}

// OnRefusal has cancel called with each request that its receiver ends before its
// final response. It is set before the first request is opened.
func (t *Table) OnRefusal(cancel func(infer.RequestID)) { t.cancel = cancel }

// NextID returns an identity for a new request.
func (t *Table) NextID() infer.RequestID {
	return infer.RequestID{Origin: t.origin, Number: t.last.Add(1)}
}

// InFlight returns the number of requests without a final response.
func (t *Table) InFlight() int64 { return t.inFlight.Load() }

// Open enters a request. From now on its responses go to next, one after
// another and none after the final one; next takes them over and must not
// block.
func (t *Table) Open(w infer.Work, next Receiver) {
	t.enter(&entry{id: w.Request, attempt: w.Attempt, next: next})
}

// OpenInOrder does what Open does for a request whose responses wait until all
// requests for the same generation that were opened in order before it have freed
// their slots. A response that is no result of the model does not wait: see
// [infer.Response.Immediate] and [Table.Finish]. The caller frees the slot after
// the final response.
func (t *Table) OpenInOrder(w infer.Work, of infer.ModelRef, next Receiver) Slot {
	e := &entry{id: w.Request, attempt: w.Attempt, next: next}
	t.fifos.join(of, e)
	t.enter(e)
	return Slot{t, e}
}

func (t *Table) enter(e *entry) {
	s := t.shard(e.id)
	t.inFlight.Add(1)
	s.mu.Lock()
	s.entries[e.id.Number] = e
	s.mu.Unlock()
}

// Respond hands a response to whoever waits for it, in its order. A
// response for a request that has its final response, for another gateway or for
// an earlier attempt is released instead.
func (t *Table) Respond(r *infer.Response) {
	e := t.find(r.Work)
	if e == nil {
		r.Release()
		return
	}
	final := r.Final
	var taken, last bool
	if e.slot != nil {
		taken, last = t.fifos.deliver(t, e, r)
	} else {
		taken, last = t.deliver(e, r)
	}
	switch {
	case !taken:
		r.Release()
	case last && !final:
		t.refused(e)
	}
}

// refused cancels a request that its receiver has ended. No lock is held.
func (t *Table) refused(e *entry) {
	if t.cancel != nil {
		t.cancel(e.id)
	}
}

// Finish ends a request here and now, with a final response of the gateway's
// own in the place of one that still waits for its order, and reports whether
// the request had not ended before. Otherwise the response is released.
func (t *Table) Finish(r *infer.Response) bool {
	e := t.find(r.Work)
	taken := false
	switch {
	case e == nil:
	case e.slot != nil:
		taken = t.fifos.finish(t, e, r)
	default:
		taken, _ = t.deliver(e, r)
	}
	if !taken {
		r.Release()
	}
	return taken
}

// find returns the entry of an attempt at a request; nil if it is over.
func (t *Table) find(w infer.Work) *entry {
	if w.Request.Origin != t.origin {
		return nil
	}
	s := t.shard(w.Request)
	s.mu.Lock()
	e := s.entries[w.Request.Number]
	s.mu.Unlock()
	if e == nil || e.attempt != w.Attempt {
		return nil
	}
	return e
}

// deliver runs under the entry's lock, so that responses do not overlap and
// only one of two racing final ones gets through.
func (t *Table) deliver(e *entry, r *infer.Response) (taken, last bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended {
		return false, false
	}
	return true, e.deliver(t, r)
}

// deliver gives a response to who waits for it, and reports whether it was the last.
// The caller holds the lock that guards ended.
func (e *entry) deliver(t *Table, r *infer.Response) (last bool) {
	e.ended = e.next.Receive(r)
	if e.ended {
		t.remove(e.id)
	}
	return e.ended
}

func (t *Table) remove(id infer.RequestID) {
	s := t.shard(id)
	s.mu.Lock()
	delete(s.entries, id.Number)
	s.mu.Unlock()
	if t.inFlight.Add(-1) > 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closeIfEmpty()
}

// Drain returns when no request is without its final response, or with the
// context's error. The caller has stopped new requests.
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
	select {
	case <-t.drained:
	default:
		close(t.drained)
	}
}

func (t *Table) shard(id infer.RequestID) *shard { return &t.shards[id.Number%shards] }
