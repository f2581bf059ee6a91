package requests

import (
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
)

// submission is a request's passage through other processes. Its fields are guarded by the entry's lock.
type submission struct {
	pool     *Pool
	request  *infer.Request  // of the current attempt; exported inputs are replaced by their names
	inputs   []infer.Tensor  // its own references to the inputs
	endLease func()          // ends the lease of exported inputs; nil if there are none
	epoch    uint64          // of the first scheduler that it was submitted to; 0 before
	step     *step           // nil without a sequence
	waits    bool            // it waits for a scheduler
	since    mono.Time       // since when it waits
	sent     mono.Time       // its current attempt was sent at this time or later; at first the request's receipt
	settled  bool            // a worker has it: every response counts
	finished bool            // a worker has answered it
	late     *infer.Response // a failure of an earlier attempt
	worker   uint64          // where it runs, as far as known
	end      mono.Time       // when it will be given up; 0 means never
}

// send submits the request's current attempt. Inputs are exported once, until the submission ends.
func (s *submission) send(session Session) error {
	if s.endLease == nil {
		s.request.Inputs, s.endLease = s.pool.lend(s.inputs, s.request.Work.Request.Origin)
	}
	return session.Submit(s.request)
}

// withdraw ends an entry's submission and returns the request, which the caller then owns. The caller holds mu.
func (e *entry) withdraw() *infer.Request {
	s := e.submission
	e.submission = nil
	s.unpark()
	s.setEnd(0)
	s.pool.leaveSequence(s)
	if s.late != nil {
		s.late.Release()
	}
	if s.endLease != nil {
		s.endLease()
	}
	s.request.Inputs = s.inputs
	e.removeIfOver()
	return s.request
}

// fail ends a submission with an error. The caller holds mu.
func (e *entry) fail(err error) { e.pass(infer.Refuse(e.submission.request.Work, err), false) }

// abandon ends a submission that nobody waits for. The caller holds mu.
func (e *entry) abandon() { e.fail(errs.New(errs.Canceled, "")) }

// pass forwards a response that counts. The final one ends the submission; with returned it carries the
// request. The caller holds mu.
func (e *entry) pass(r *infer.Response, returned bool) (refused bool) {
	if r.Final {
		if r.Err != nil {
			e.submission.pool.breakSequence(e.submission)
		}
		request := e.withdraw()
		if returned {
			r.Returned = request
		} else {
			request.Release()
		}
	}
	r.Work.Attempt = e.attempt // the attempt that the client's side knows
	return e.deliver(r)
}

// respondSubmitted handles a response of a worker. The caller holds mu.
func (e *entry) respondSubmitted(r *infer.Response) (refused bool) {
	s := e.submission
	if errs.Of(r.Err) == errs.Canceled && s.request.Deadline != 0 {
		r.Err = overdue(s.request)
	}
	if r.Err == nil || s.settled || r.Work.Attempt == s.request.Work.Attempt {
		return e.pass(r, false)
	}
	if s.late != nil {
		s.late.Release()
	}
	s.late = r
	return false
}

// overdue returns why a worker canceled a request: unless its client did, the scheduler stopped it at its
// deadline. The scheduler's own report may arrive later, or be lost with its session.
func overdue(r *infer.Request) *errs.Error {
	return errs.New(errs.DeadlineCompute, "the deadline passed while the request ran").WithModel(r.Model.Name)
}

// Refused ends a request that the scheduler does not accept, or makes it wait for the next one.
func (p *Pool) Refused(w infer.Work, err error) { p.Response(infer.Refuse(w, err), false) }

// Response handles a request's end by the scheduler, or its report that someone else ends it. With returned the
// response carries the request.
func (p *Pool) Response(r *infer.Response, returned bool) {
	p.table.answer(r, func(e *entry, r *infer.Response) bool { return e.respondQueued(p, r, returned) })
}

// respondQueued handles what the scheduler reports about a request. The caller holds mu.
func (e *entry) respondQueued(p *Pool, r *infer.Response, returned bool) (refused bool) {
	s := e.submission
	if s == nil || s.pool != p || r.Work.Attempt != s.request.Work.Attempt && !s.settled {
		r.Release()
		return false
	}
	switch errs.Of(r.Err) {
	case errs.RequestUnderway, errs.RequestFinished:
		r.Release()
		return e.settle(errs.Of(r.Err) == errs.RequestFinished)
	case errs.SchedulerDeposed, errs.Draining: // returned to the gateway
		r.Release()
		if e.ended {
			e.abandon()
		} else {
			e.giveBack()
		}
		return false
	}
	return e.pass(r, returned)
}

// giveBack makes a submission wait for the next scheduler. A call by a model that was already submitted ends
// instead, because the knowledge about its parent, which the scheduler needs to detect a deadlock, is lost. The
// caller holds mu.
func (e *entry) giveBack() {
	s := e.submission
	if s.epoch != 0 && s.request.Parent != (infer.Parent{}) {
		e.fail(errs.New(errs.NoScheduler, "the scheduler of the pool %q has changed while the call waited or ran", s.pool.name).
			WithModel(s.request.Model.Name))
		return
	}
	s.park()
}

// settle records that a worker has the request or has answered it: the response is on its way, or was lost with
// the worker. The caller holds mu.
func (e *entry) settle(finished bool) (refused bool) {
	s := e.submission
	s.settled = true
	if late := s.late; late != nil {
		s.late = nil
		return e.pass(late, false)
	}
	if s.finished = s.finished || finished; finished {
		s.setEnd(s.pool.clock.Now().Add(s.pool.bounds.Grace))
	}
	return false
}

// Placed records on which worker a request runs, or has run.
func (p *Pool) Placed(w infer.Work, worker uint64) {
	e := p.table.find(w.Request)
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.submission; s != nil && s.pool == p {
		s.worker = worker
		p.table.setEnd(s)
	}
}

// Cancel records that nobody waits for a request any more. A scheduler or worker in another process still
// finishes its part.
func (t *Table) Cancel(id infer.RequestID) {
	e := t.find(id)
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.submission
	if s == nil {
		return
	}
	if session := s.pool.breakSequence(s); session != nil && !s.waits {
		session.Cancel(id)
		return
	}
	e.withdraw().Release()
}

// Lent returns the inputs of a request as they were submitted, if some of them were exported. It returns none
// after the request's end.
func (t *Table) Lent(id infer.RequestID) []infer.Tensor {
	e := t.find(id)
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.submission; s != nil && s.endLease != nil {
		return s.request.Inputs
	}
	return nil
}

// park makes a submission wait for a scheduler.
func (s *submission) park() {
	if !s.waits {
		s.waits, s.since = true, s.pool.clock.Now()
		s.pool.waiting.Add(1)
		s.pool.waitingBytes.Add(s.request.InputBytes())
	}
}

func (s *submission) unpark() {
	if s.waits {
		s.waits = false
		s.pool.waiting.Add(-1)
		s.pool.waitingBytes.Add(-s.request.InputBytes())
	}
}

// setEnd sets when a submission is given up; 0 means never.
func (s *submission) setEnd(at mono.Time) {
	if s.end != 0 {
		s.pool.ending.Add(-1)
	}
	if at != 0 {
		s.pool.ending.Add(1)
	}
	s.end = at
}
