// Package pending holds the gateway's table of requests that have no final
// answer yet. The table is the only finaliser: whatever answers, the model,
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

// Table is safe for concurrent use.
type Table struct {
	origin   uint64
	last     atomic.Uint64
	inFlight atomic.Int64
	shards   [shards]shard

	mu      sync.Mutex
	drained chan struct{} // closed when draining and empty; nil before; guarded by mu
}

type shard struct {
	mu      sync.Mutex
	entries map[uint64]*entry // by request number; guarded by mu
}

// entry is one request without a final answer.
type entry struct {
	mu      sync.Mutex
	ended   bool // guarded by mu
	attempt uint32
	next    infer.Responder
}

// New makes a table for the gateway incarnation origin.
func New(origin uint64) *Table {
	t := &Table{origin: origin}
	for i := range t.shards {
		t.shards[i].entries = make(map[uint64]*entry)
	}
	return t
}

// NextID returns an identity for a new request.
func (t *Table) NextID() infer.RequestID {
	return infer.RequestID{Origin: t.origin, Number: t.last.Add(1)}
}

// InFlight returns the number of requests without a final answer.
func (t *Table) InFlight() int64 { return t.inFlight.Load() }

// Open enters a request. From now on its responses go to next, one after
// another and none after the final one; next takes them over and must not
// block.
func (t *Table) Open(w infer.Work, next infer.Responder) {
	s := t.shard(w.Request)
	e := &entry{attempt: w.Attempt, next: next}
	t.inFlight.Add(1)
	s.mu.Lock()
	s.entries[w.Request.Number] = e
	s.mu.Unlock()
}

// Respond hands a response to whoever waits for it; see [Table.Finish].
func (t *Table) Respond(r *infer.Response) { t.Finish(r) }

// Finish hands a response on and reports whether it was taken. A response
// for a request that has had its final answer, for another gateway or for an
// earlier attempt is released instead.
func (t *Table) Finish(r *infer.Response) bool {
	if !t.deliver(r) {
		r.Release()
		return false
	}
	return true
}

func (t *Table) deliver(r *infer.Response) bool {
	if r.Work.Request.Origin != t.origin {
		return false
	}
	// Whoever takes the response over may recycle it: look at it before.
	id, final := r.Work.Request, r.Final
	s := t.shard(id)
	s.mu.Lock()
	e := s.entries[id.Number]
	s.mu.Unlock()
	if e == nil || !e.deliver(r) {
		return false
	}
	if final {
		t.remove(s, id.Number)
	}
	return true
}

// deliver runs under the entry's lock, so that responses do not overlap and
// only one of two racing final ones gets through.
func (e *entry) deliver(r *infer.Response) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended || r.Work.Attempt != e.attempt {
		return false
	}
	e.ended = r.Final
	e.next.Respond(r)
	return true
}

func (t *Table) remove(s *shard, number uint64) {
	s.mu.Lock()
	delete(s.entries, number)
	s.mu.Unlock()
	if t.inFlight.Add(-1) > 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closeIfEmpty()
}

// Drain returns when no request is without its final answer, or with the
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
