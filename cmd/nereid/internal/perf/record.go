package perf

import (
	"errors"
	"sync"
	"time"
)

// outcome is what became of one request. Times are offsets from the start of the
// run's measured part.
type outcome struct {
	class     int
	due, sent time.Duration
	first     time.Duration // the first response
	done      time.Duration
	responses int
	err       error
}

// recorder counts the outcomes of a run. It is safe for concurrent use. What it
// holds does not grow with the run, unless it keeps each latency.
type recorder struct {
	length time.Duration // of the measured part
	each   bool          // keep each latency, for a short run

	mu     sync.Mutex
	groups []group // of each class, then of all; guarded by mu
	lag    spread  // by which requests were sent too late; guarded by mu
	late   int64   // requests sent too late; guarded by mu
	unsent int64   // requests that were due and could not be sent; guarded by mu
}

// group counts the outcomes of some requests.
type group struct {
	latency spread // from due to the last response
	first   spread // from due to the first response
	between spread // from a response to the next
	// Requests by the batch in which they were due.
	answered, failed, responses [batches]int64
	each                        [batches][]time.Duration // where the recorder keeps each latency
	errors                      map[string]int64
	example                     map[string]string // a text of each kind of error
}

// lateAfter is from which lag on a request was sent too late.
const lateAfter = time.Millisecond

// kinds bounds how many kinds of errors are counted separately: the server chooses their names.
const kinds = 64

func newRecorder(classes int, length time.Duration, each bool) *recorder {
	r := &recorder{length: length, each: each, groups: make([]group, classes+1)}
	for i := range r.groups {
		r.groups[i].errors, r.groups[i].example = make(map[string]int64), make(map[string]string)
	}
	return r
}

// batchOf is the batch of a time. Times outside the measured part have none.
func (r *recorder) batchOf(at time.Duration) (int, bool) {
	if at < 0 || at >= r.length {
		return 0, false
	}
	return min(int(int64(at)*batches/int64(r.length)), batches-1), true
}

// add counts a request that has ended.
func (r *recorder) add(o *outcome) {
	batch, ok := r.batchOf(o.due)
	if !ok {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	lag := o.sent - o.due
	r.lag.add(batch, lag)
	if lag > lateAfter {
		r.late++
	}
	for _, g := range []*group{&r.groups[o.class], &r.groups[len(r.groups)-1]} {
		g.add(batch, o, r.each)
	}
}

func (g *group) add(batch int, o *outcome, each bool) {
	g.responses[batch] += int64(o.responses)
	if o.err != nil {
		g.failed[batch]++
		g.fail(o.err)
		return
	}
	g.answered[batch]++
	g.latency.add(batch, o.done-o.due)
	if each {
		g.each[batch] = append(g.each[batch], o.done-o.due)
	}
	if o.responses > 0 {
		g.first.add(batch, o.first-o.due)
	}
}

func (g *group) fail(err error) {
	kind, text := "failed", err.Error()
	if f := new(failure); errors.As(err, &f) {
		kind, text = f.kind, f.text
	}
	if _, ok := g.errors[kind]; !ok && len(g.errors) >= kinds {
		kind = "other"
	}
	g.errors[kind]++
	if _, ok := g.example[kind]; !ok {
		g.example[kind] = text
	}
}

// gap counts the time between two responses to a request that was due at a time.
func (r *recorder) gap(class int, due, gap time.Duration) {
	batch, ok := r.batchOf(due)
	if !ok {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.groups[class].between.add(batch, gap)
	r.groups[len(r.groups)-1].between.add(batch, gap)
}

// skip counts a request that was due and could not be sent.
func (r *recorder) skip(due time.Duration) {
	if _, ok := r.batchOf(due); ok {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.unsent++
	}
}
