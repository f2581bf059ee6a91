package pending

import (
	"sync"

	"github.com/nereid-serving/nereid/libs/infer"
)

// fifos keep the responses of generations that preserve ordering in the order of
// their requests. Batches run on several instances and end in any order; here a
// response waits until the requests before its own have freed their slots.
// Whatever ends a request, a result, a refusal, a cancellation or the loss of its
// worker, its slot is freed: nothing can block those behind it.
//
// One lock serves all queues: it takes the place of the entries' locks, and is
// held while a responder stores a response.
type fifos struct {
	mu sync.Mutex
	of map[infer.ModelRef][]*entry // from the oldest; the first has not freed its slot; guarded by mu
}

// fifoSlot is an entry's slot in its queue. Its fields, and the entry's ended, are
// guarded by the queues' lock.
type fifoSlot struct {
	generation infer.ModelRef
	waiting    []*infer.Response // until the slot is the first
	bytes      int64             // of these
	final      bool              // the last of them is final
	freed      bool
}

// Slot is the slot of a request in the queue of its generation.
type Slot struct {
	table *Table
	entry *entry
}

// Free lets the next response go. It is called once, by who opened the request,
// when the final response has been delivered or does not matter any more.
func (s Slot) Free() { s.table.fifos.free(s.table, s.entry) }

func (q *fifos) join(generation infer.ModelRef, e *entry) {
	e.slot = &fifoSlot{generation: generation}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.of == nil {
		q.of = make(map[infer.ModelRef][]*entry)
	}
	q.of[generation] = append(q.of[generation], e)
}

// deliver hands a response on, or keeps it until its slot is the first.
func (q *fifos) deliver(t *Table, e *entry, r *infer.Response) (taken, last bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case e.ended || e.slot.final:
		return false, false
	case r.Immediate:
		e.slot.drop()
		return true, e.deliver(t, r)
	case q.of[e.slot.generation][0] == e:
		return true, e.deliver(t, r)
	}
	if err := unread(len(e.slot.waiting), e.slot.bytes); err != nil && !r.Final {
		work := r.Work
		r.Release()
		e.slot.drop()
		return true, e.deliver(t, infer.Fail(work, err))
	}
	e.slot.waiting, e.slot.bytes = append(e.slot.waiting, r), e.slot.bytes+r.OutputBytes()
	e.slot.final = r.Final
	return true, false
}

// finish ends an entry, whatever waits in its slot.
func (q *fifos) finish(t *Table, e *entry, r *infer.Response) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if e.ended {
		return false
	}
	e.slot.drop()
	e.deliver(t, r)
	return true
}

// drop releases the responses that wait.
func (s *fifoSlot) drop() {
	for _, r := range s.waiting {
		r.Release()
	}
	s.waiting, s.bytes = nil, 0
}

// free frees an entry's slot. The first that is not free moves up, and what waits
// in it is handed on; a queue without any ends.
func (q *fifos) free(t *Table, e *entry) {
	if refused := q.advance(t, e); refused != nil {
		t.refused(refused)
	}
}

// advance frees an entry's slot, and returns the entry whose receiver has refused
// what had waited for it; nil if none has.
func (q *fifos) advance(t *Table, e *entry) (refused *entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e.slot.freed = true
	generation := e.slot.generation
	queue := q.of[generation]
	for len(queue) > 0 && queue[0].slot.freed {
		queue[0] = nil
		queue = queue[1:]
	}
	if len(queue) == 0 {
		delete(q.of, generation)
		return nil
	}
	q.of[generation] = queue
	first := queue[0]
	waiting, final := first.slot.waiting, first.slot.final
	first.slot.waiting, first.slot.bytes = nil, 0
	for i, r := range waiting {
		if first.deliver(t, r) && i < len(waiting)-1 {
			for _, r := range waiting[i+1:] {
				r.Release()
			}
			break
		}
	}
	if first.ended && !final {
		return first
	}
	return nil
}
