package requests

import (
	"sync"

	"github.com/nereid-serving/nereid/libs/infer"
)

// queues put the responses of generations that preserve ordering in the order of their requests. Batches run on
// several instances and end in any order; a response waits here until all earlier requests have freed their
// slots. Whatever ends a request (a result, a refusal, a cancellation or the loss of its worker), its slot is
// freed, so nothing can block the requests behind it.
type queues struct {
	mu sync.Mutex
	of map[infer.ModelRef][]*entry // oldest first; the first has not freed its slot; guarded by mu
}

// slot is an entry's place in the queue of its generation. Its fields are guarded by the entry's lock, except
// for freed.
type slot struct {
	generation infer.ModelRef
	first      bool              // its responses no longer wait
	waiting    []*infer.Response // held back until the slot is first
	bytes      int64             // size of the waiting responses
	final      bool              // the last waiting response is final
	freed      bool              // guarded by the queues' lock
}

// Slot is the slot of a request in the queue of its generation.
type Slot struct{ entry *entry }

// Free releases the responses to the next request. Whoever opened the request calls it once, when the final
// response has been delivered or no longer matters.
func (s Slot) Free() {
	t := s.entry.table
	first := t.queues.leave(s.entry)
	if first == nil {
		return
	}
	first.mu.Lock()
	refused := first.moveUp()
	first.mu.Unlock()
	if refused {
		t.refused(first)
	}
}

// join appends an entry, which must not be shared yet, to the queue of its generation.
func (q *queues) join(e *entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.of == nil {
		q.of = make(map[infer.ModelRef][]*entry)
	}
	before := q.of[e.slot.generation]
	e.slot.first = len(before) == 0
	q.of[e.slot.generation] = append(before, e)
}

// leave frees an entry's slot. It returns the entry that becomes first, or nil. It removes a queue that becomes
// empty.
func (q *queues) leave(e *entry) (first *entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e.slot.freed = true
	queue := q.of[e.slot.generation]
	if queue[0] != e {
		return nil
	}
	for len(queue) > 0 && queue[0].slot.freed {
		queue[0] = nil
		queue = queue[1:]
	}
	if len(queue) == 0 {
		delete(q.of, e.slot.generation)
		return nil
	}
	q.of[e.slot.generation] = queue
	return queue[0]
}

// keep holds a response back until the slot is first. If too much is waiting, it returns the error that ends
// the request in place of all waiting responses.
func (s *slot) keep(r *infer.Response) (ended *infer.Response) {
	if err := unread(len(s.waiting), s.bytes); err != nil && !r.Final {
		work := r.Work
		r.Release()
		s.drop()
		return infer.Fail(work, err)
	}
	s.waiting, s.bytes = append(s.waiting, r), s.bytes+r.OutputBytes()
	s.final = r.Final
	return nil
}

// drop releases the waiting responses, if there is a slot.
func (s *slot) drop() {
	if s == nil {
		return
	}
	for _, r := range s.waiting {
		r.Release()
	}
	s.waiting, s.bytes = nil, 0
}

// moveUp delivers the responses that waited for the entry to become first. It reports whether the receiver
// ended the request before its final response. The caller holds mu.
func (e *entry) moveUp() (refused bool) {
	waiting, final := e.slot.waiting, e.slot.final
	e.slot.first, e.slot.waiting, e.slot.bytes = true, nil, 0
	for i, r := range waiting {
		if !e.receive(r) {
			continue
		}
		for _, r := range waiting[i+1:] {
			r.Release()
		}
		return !final
	}
	return false
}
