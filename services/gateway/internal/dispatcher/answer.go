package dispatcher

import (
	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/plane/schedule"
)

// Respond takes a response of a worker.
func (d *Dispatcher) Respond(r *infer.Response) {
	d.mu.Lock()
	e := d.entries[r.Work.Request]
	if e == nil {
		d.mu.Unlock()
		r.Release()
		return
	}
	if errs.Of(r.Err) == errs.Canceled && !e.gone && e.request.Deadline != 0 {
		r.Err = overdue(e.request)
	}
	if r.Err != nil && !e.settled && r.Work.Attempt != e.attempt {
		before := e.late
		e.late = r
		d.mu.Unlock()
		if before != nil {
			before.Release()
		}
		return
	}
	d.deliver(e, r, false)
}

// overdue is why a worker has canceled a request that its client has not: the
// scheduler had it stop at its deadline. What the scheduler says of that may come
// later, or be lost with its session.
func overdue(r *infer.Request) *errs.Error {
	return errs.New(errs.DeadlineCompute, "the deadline passed while the request ran").WithModel(r.Model.Name)
}

// deliver passes on a response that counts. The caller holds mu, which is let
// go.
func (d *Dispatcher) deliver(e *entry, r *infer.Response, returned bool) {
	own := false
	if r.Final {
		if r.Err != nil {
			d.breakSequence(e)
		}
		own = d.remove(e)
	}
	if returned { // by a session that has read it
		own, e.over = false, false
	}
	d.mu.Unlock()
	r.Work.Attempt = e.request.Work.Attempt // by which the gateway knows it
	if !r.Final {
		d.deps.To.Respond(r)
		return
	}
	if returned {
		r.Returned = e.request
		d.deps.Forget(e.request.Work.Request)
	}
	d.letGo(e, own)
	d.deps.To.Respond(r)
}

// handler is what one session tells. What one says that has been replaced is
// of no use: its requests have been submitted again.
type handler struct {
	dispatcher *Dispatcher
	life       uint64
}

var _ schedule.GatewayHandler = handler{}

// Accepted changes nothing: a request that was sent counts as accepted.
func (h handler) Accepted(infer.Work) {}

// Refused ends a request that the scheduler does not take, or has it wait for
// the next one.
func (h handler) Refused(w infer.Work, err error) { h.Response(infer.Refuse(w, err), false) }

// Response is the scheduler's end of a request, or its word that others end it.
func (h handler) Response(r *infer.Response, returned bool) {
	d := h.dispatcher
	d.mu.Lock()
	e := d.entries[r.Work.Request]
	if e == nil || d.life != h.life || (r.Work.Attempt != e.attempt && !e.settled) {
		d.mu.Unlock()
		r.Release()
		return
	}
	switch errs.Of(r.Err) {
	case errs.RequestUnderway, errs.RequestFinished:
		r.Release()
		d.settle(e, errs.Of(r.Err) == errs.RequestFinished)
	case errs.SchedulerDeposed, errs.Draining:
		r.Release()
		d.postpone(e)
	default:
		d.deliver(e, r, returned)
	}
}

// settle notes that a worker has the request or has answered it: then the
// answer is on its way, or was lost with the worker. The caller holds mu, which
// is let go.
func (d *Dispatcher) settle(e *entry, finished bool) {
	e.settled = true
	if late := e.late; late != nil {
		e.late = nil
		d.deliver(e, late, false)
		return
	}
	if finished {
		d.setEnd(e, d.deps.Clock.Now().Add(d.config.Grace))
	}
	d.mu.Unlock()
}

// postpone has a request that was given back wait for the next scheduler. The
// caller holds mu, which is let go.
func (d *Dispatcher) postpone(e *entry) {
	switch {
	case e.gone:
		d.deliver(e, infer.Refuse(e.request.Work, errs.New(errs.Canceled, "")), false)
	default:
		d.park(e)
		d.mu.Unlock()
	}
}

// Placed says on which worker a request will run.
func (h handler) Placed(w infer.Work, worker uint64) {
	d := h.dispatcher
	d.mu.Lock()
	e := d.entries[w.Request]
	if e == nil {
		d.mu.Unlock()
		return
	}
	e.worker = worker
	d.setEnd(e, 0)
	d.mu.Unlock()
	d.deps.Pushed(w, worker, e.request)
}

// Draining has new requests wait for the next scheduler.
func (h handler) Draining() {
	d := h.dispatcher
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drained = h.life
}

// Lost says that a worker is gone. Its scheduler fails what ran there; what it
// had answered, and the answer was lost, is given up after a while.
func (d *Dispatcher) Lost(worker uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	end, count := d.deps.Clock.Now().Add(d.config.Grace), 0
	for _, e := range d.entries {
		if e.worker == worker && e.end == 0 {
			d.setEnd(e, end)
			count++
		}
	}
	if count > 0 {
		d.deps.Log.Warn("a worker is gone with requests", zap.Uint64("incarnation", worker), zap.Int("requests", count))
	}
}
