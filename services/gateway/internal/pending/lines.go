package pending

import (
	"sync"

	"github.com/nereid-serving/nereid/libs/infer"
)

// lines keep the answers of contents that preserve ordering in the order of
// their requests. Batches run on several instances and end in any order; here
// a response waits until the requests before its own have passed their turns.
// Whatever ends a request, a result, a refusal, a cancellation or the loss of
// its worker, its turn is passed: nothing can block those behind it.
//
// One lock serves all lines: it takes the place of the entries' locks, and is
// held while a responder stores a response.
type lines struct {
	mu sync.Mutex
	of map[infer.ModelRef][]*entry // from the oldest; the first has not passed its turn; guarded by mu
}

// place is an entry's place in a line. Its fields, and the entry's ended, are
// guarded by the lines' lock.
type place struct {
	content  infer.ModelRef
	held     []*infer.Response // that wait for their turn
	answered bool              // the last of them is final
	passed   bool
}

// Turn is the turn of a request in its line.
type Turn struct {
	table *Table
	entry *entry
}

// Pass lets those behind have their turn. It is called once, by who opened the
// request, when the final answer has been delivered or does not matter any
// more.
func (t Turn) Pass() { t.table.lines.pass(t.table, t.entry) }

func (l *lines) join(content infer.ModelRef, e *entry) {
	e.place = &place{content: content}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil {
		l.of = make(map[infer.ModelRef][]*entry)
	}
	l.of[content] = append(l.of[content], e)
}

// deliver hands a response on, or holds it until its turn.
func (l *lines) deliver(t *Table, e *entry, r *infer.Response) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case e.ended || e.place.answered:
		return false
	case r.Immediate:
		e.place.drop()
		e.deliver(t, r)
	case l.of[e.place.content][0] == e:
		e.deliver(t, r)
	default:
		e.place.held = append(e.place.held, r)
		e.place.answered = r.Final
	}
	return true
}

// finish ends an entry, whatever it holds.
func (l *lines) finish(t *Table, e *entry, r *infer.Response) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.ended {
		return false
	}
	e.place.drop()
	e.deliver(t, r)
	return true
}

// drop releases what is held and of no use any more.
func (p *place) drop() {
	for _, r := range p.held {
		r.Release()
	}
	p.held = nil
}

// pass ends an entry's turn. The line moves up to the first one that has not
// passed, which is handed what is held for it; a line without any ends.
func (l *lines) pass(t *Table, e *entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.place.passed = true
	content := e.place.content
	line := l.of[content]
	for len(line) > 0 && line[0].place.passed {
		line[0] = nil
		line = line[1:]
	}
	if len(line) == 0 {
		delete(l.of, content)
		return
	}
	l.of[content] = line
	first := line[0]
	for _, r := range first.place.held {
		first.deliver(t, r)
	}
	first.place.held = nil
}
