package requests

import "github.com/nereid-serving/nereid/libs/mono"

// A submitted request depends on the worker that has it. The scheduler fails the requests that run on a lost
// worker. Requests that have already run there were answered; if such an answer can no longer arrive, only the
// gateway knows that the request still waits for it. So, after its pool's grace, the gateway gives up a request
// that is placed on a worker
//   - that is unavailable: its lease and its stream have ended, or were never seen;
//   - that has dropped answers for this gateway since the request was submitted.

// Back records that a worker is available, for the first time or again.
func (t *Table) Back(worker uint64) {
	t.mu.Lock()
	if _, known := t.workers[worker]; !known {
		t.workers[worker] = 0
	}
	t.mu.Unlock()
	t.review(worker)
}

// Lost records that a worker is lost, and returns how many requests it had.
func (t *Table) Lost(worker uint64) (requests int) {
	t.mu.Lock()
	delete(t.workers, worker)
	t.mu.Unlock()
	return t.review(worker)
}

// Dropped records when an available worker last dropped answers for this gateway, and returns how many requests
// are given up because of that.
func (t *Table) Dropped(worker uint64, at mono.Time) (requests int) {
	t.mu.Lock()
	before, there := t.workers[worker]
	if there {
		t.workers[worker] = max(at, before)
	}
	t.mu.Unlock()
	return t.review(worker)
}

// review recomputes when the requests placed on a worker are given up, and returns how many will be.
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

// setEnd sets when a submission is given up, depending on the state of its worker. A time that is already set
// stays. The caller holds the entry's lock.
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

// overdue reports whether a submission must be given up now. An answer may take long to arrive; if it started
// arriving in time, it is waited for.
func (t *Table) overdue(s *submission, now mono.Time) bool {
	return s.end != 0 && now >= s.end && (t.arrives == nil || !t.arrives(s.worker, s.end))
}
