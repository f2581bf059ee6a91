package requests

import "github.com/nereid-serving/nereid/libs/mono"

// A request that was submitted ends with the worker that has it. The scheduler fails
// what runs on a worker that is lost. What has run there has been answered; where that
// answer cannot come any more, nobody but the gateway knows that the request waits for
// it. So the gateway gives a request up, after its pool's grace, that is placed on a
// worker
//   - that is not there: its lease and its stream have ended, or were never seen;
//   - that has dropped answers for this gateway after the request was submitted.

// Back says that a worker is there, for the first time or again.
func (t *Table) Back(worker uint64) {
	t.mu.Lock()
	if _, known := t.workers[worker]; !known {
		t.workers[worker] = 0
	}
	t.mu.Unlock()
	t.review(worker)
}

// Lost says that a worker is gone, and returns how many requests it had.
func (t *Table) Lost(worker uint64) (requests int) {
	t.mu.Lock()
	delete(t.workers, worker)
	t.mu.Unlock()
	return t.review(worker)
}

// Dropped says when a worker that is there last dropped answers for this gateway, and
// returns how many requests are given up for that.
func (t *Table) Dropped(worker uint64, at mono.Time) (requests int) {
	t.mu.Lock()
	before, there := t.workers[worker]
	if there {
		t.workers[worker] = max(at, before)
	}
	t.mu.Unlock()
	return t.review(worker)
}

// review decides again when the requests end that are placed on a worker, and returns
// how many are to be given up.
func (t *Table) review(worker uint64) (requests int) {
	for _, e := range t.all() {
		e.mu.Lock()
		if s := e.submission; s != nil && s.worker == worker {
			if t.setEnd(s); s.end != 0 {
				requests++
			}
		}
		e.mu.Unlock()
	}
	return requests
}

// setEnd sets when a submission is given up, by the state of its worker. One that is to
// be given up already keeps its time. The caller holds the entry's lock.
func (t *Table) setEnd(s *submission) {
	if s.finished {
		return
	}
	sent := s.sent
	if s.settled { // an earlier attempt runs
		sent = s.request.Received
	}
	t.mu.Lock()
	dropped, there := t.workers[s.worker]
	t.mu.Unlock()
	switch {
	case there && (dropped == 0 || sent > dropped):
		s.setEnd(0)
	case s.end == 0:
		s.setEnd(s.pool.clock.Now().Add(s.pool.bounds.Grace))
	}
}

// overdue reports whether a submission is to be given up now. An answer that is on its
// way may take long: it is waited for, if it began to come in time.
func (t *Table) overdue(s *submission, now mono.Time) bool {
	return s.end != 0 && now >= s.end && (t.arrives == nil || !t.arrives(s.worker, s.end))
}
