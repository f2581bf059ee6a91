package dispatch

import (
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/scheduler/core"
	"github.com/nereid-serving/nereid/services/scheduler/internal/stats"
)

// apply carries out one decision about an event.
func (l *Loop) apply(e *core.Event, d *core.Decision) {
	switch d.Kind {
	case core.Dispatch:
		l.dispatch(d.Members())
	case core.Refuse:
		l.refuse(d.Item(), d.Reason, time.Duration(d.A))
	case core.Fail:
		l.fail(d.Item(), d.Members(), d.Reason)
	case core.HandOff:
		l.handOff(d)
	case core.Complete:
		l.complete(e, d)
	case core.Free:
		if c := l.stats.Of(d.Members().Model); c != nil {
			c.Completed(e.Ended, nil)
		}
	case core.Again:
		l.again(e, d)
	case core.Abort:
		l.abort(d.Members(), d.Item(), d.Reason)
	case core.Requeue:
		l.requeue(d.Members())
	case core.UnknownBatch:
		release(e, d.Batch)
	case core.InstanceRetired:
		if e := l.executors[d.Instance.Worker]; e != nil {
			e.Retired(d.Instance)
		}
	case core.Record:
		l.members.Record(uint64(d.A), l.core.History())
	case core.WorkerGone:
		delete(l.executors, d.Instance.Worker)
		l.members.Gone(d.Instance.Worker, d.A != 0)
	case core.Wait: // only for recorders
	}
}

// release releases the requests of a batch that the event returned.
func release(e *core.Event, id infer.BatchID) {
	for _, b := range e.Batches {
		if b.ID == id {
			for _, r := range b.Requests {
				r.Release()
			}
		}
	}
	if e.Ended != nil {
		for _, r := range e.Ended.Again {
			r.Release()
		}
	}
}

func (l *Loop) dispatch(b *core.Batch) {
	if c := l.stats.Of(b.Model); c != nil {
		c.Started(counted(b.Items))
		c.Runs(len(b.Items))
	}
	l.executors[b.Instance.Worker].Execute(&b.Batch)
}

// counted returns how many of the items the statistics count as pending: all but those that arrived before their
// model's configuration.
func counted(items []*core.Item) (n int) {
	for _, it := range items {
		if it != nil && it.Counted {
			n++
		}
	}
	return n
}

// refuse ends a request that has not run. If its content is gone, the request goes back to its gateway, which may
// know a newer one.
func (l *Loop) refuse(it *core.Item, reason errs.Reason, retry time.Duration) {
	answer := infer.Refuse(it.Work, refusal(it.Request, reason).WithRetry(retry))
	if reason == errs.ModelNotReady || reason == errs.NoWorker {
		answer.Returned = it.Request
	} else {
		it.Request.Release()
	}
	l.leftQueue(it, reason)
	l.responder.Respond(answer)
	l.recycle(it)
}

// leftQueue counts a request that ends without having run.
func (l *Loop) leftQueue(it *core.Item, reason errs.Reason) {
	c := l.stats.Of(it.Model)
	if c == nil {
		return
	}
	if reason != "" {
		c.Refused(reason, l.clock.Now().Sub(it.Arrived()))
	}
	if it.Counted {
		c.Started(1)
	}
}

// fail ends a request that ran on a worker that is gone or, if there is no batch, may have run.
func (l *Loop) fail(it *core.Item, b *core.Batch, reason errs.Reason) {
	err := refused(it.Model, reason, "the worker that ran the request is gone") // the model of an adopted one is unknown
	switch {
	case it.Request == nil && reason == errs.SequenceLost:
		err = iterationLost(it.Model)
	case b == nil:
		err = refusal(it.Request, reason)
	}
	if b == nil {
		l.leftQueue(it, reason)
	} else if c := l.stats.Of(it.Model); c != nil {
		c.Runs(-1)
		c.Lost(l.clock.Now().Sub(it.Arrived()))
	}
	if b == nil || b.Returned {
		it.Request.Release()
	}
	l.responder.Respond(infer.Refuse(it.Work, err))
	l.recycle(it)
}

// handOff ends a request that somebody else finishes: its worker or, if there is a reason to report, its gateway. An
// unreachable gateway gets no answer: it would apply the answer to the request that it resubmits.
//
// A gateway that learns that a worker runs the request also learns which worker: if that worker is lost, nobody else
// answers.
func (l *Loop) handOff(d *core.Decision) {
	it, b, reason := d.Item(), d.Members(), d.Reason
	if b == nil {
		l.leftQueue(it, "")
	} else if c := l.stats.Of(b.Model); c != nil && !b.Adopted {
		c.Runs(-1)
	}
	if reason != "" && reason != errs.PeerUnreachable {
		answer := infer.Refuse(it.Work, refusal(it.Request, reason))
		it.Request.Release()
		l.responder.Respond(answer)
		if worker := d.Instance.Worker; worker != 0 {
			l.members.Placed(it.Work, worker)
		}
	} else if b == nil || b.Returned {
		it.Request.Release()
	}
	l.recycle(it)
}

// abort stops waiting for a running request. It answers a passed deadline immediately, since the executor may take
// long to react; a canceled client gets no answer.
func (l *Loop) abort(b *core.Batch, it *core.Item, reason errs.Reason) {
	if reason == errs.DeadlineCompute {
		l.responder.Respond(infer.Refuse(it.Work, refused(it.Model, reason, "the deadline passed while the request ran")))
	}
	if e := l.executors[b.Instance.Worker]; e != nil {
		e.Cancel(b.ID, it.Work.Request)
	}
}

func (l *Loop) requeue(b *core.Batch) {
	c := l.stats.Of(b.Model)
	if c == nil {
		return
	}
	for _, it := range b.Items {
		if it == nil {
			continue
		}
		c.Runs(-1)
		if it.Counted {
			c.Submitted()
		}
	}
}

// complete ends a unit of a batch or, if the decision names none, the rest of the batch. The event lists units in the
// order of the batch, including those that have ended before.
func (l *Loop) complete(e *core.Event, d *core.Decision) {
	b, ended, first, end := d.Members(), e.Ended, 0, len(d.Members().Items)
	if d.Unit != (infer.Unit{}) {
		ended, first, end = &infer.InstanceFree{Timing: b.Timing}, int(d.A), int(d.A)+1
	}
	if e.Done != nil {
		ended.Timing.Done = e.Done.At
	}
	l.served = l.served[:0]
	running := 0
	for i := first; i < end; i++ {
		it := b.Items[i]
		if d.Unit != (infer.Unit{}) {
			it = d.Item() // it has left the batch
		}
		if it == nil {
			continue
		}
		running++
		if b.Returned {
			it.Request.Release()
		}
		s := stats.Served{Rows: it.BatchSize, Enqueued: it.Arrived(), Queued: it.Enqueued, Dispatched: b.Dispatched}
		switch {
		case e.Done != nil:
			s.Outcome, s.FirstResponse, s.Responses = e.Done.Outcome, e.Done.FirstResponse, e.Done.Responses
			l.served = append(l.served, s)
		case i < len(e.Ended.Outcomes):
			s.Outcome = e.Ended.Outcomes[i]
			if i < len(e.Ended.FirstResponses) {
				s.FirstResponse = e.Ended.FirstResponses[i]
			}
			if i < len(e.Ended.Responses) {
				s.Responses = e.Ended.Responses[i]
			}
			l.served = append(l.served, s)
		}
		l.recycle(it)
	}
	if c := l.stats.Of(b.Model); c != nil {
		if !b.Adopted {
			c.Runs(-running)
		}
		c.Completed(ended, l.served)
	}
}

// again counts an iteration as a request of its own, as Triton does. If the report of its end was lost, nothing else
// is known about it.
func (l *Loop) again(e *core.Event, d *core.Decision) {
	b, it := d.Members(), d.Item()
	c := l.stats.Of(b.Model)
	if c == nil {
		return
	}
	c.Runs(-1)
	if it.Counted {
		c.Submitted()
	}
	if e.Ended != nil {
		c.Completed(&infer.InstanceFree{Timing: b.Timing}, []stats.Served{{
			Again: true, Rows: it.BatchSize, Enqueued: it.Arrived(), Queued: mono.Time(d.A), Dispatched: b.Dispatched,
		}})
	}
}

func (l *Loop) recycle(it *core.Item) {
	it.Reset()
	l.items.Put(it)
}

// refusal returns the error for a request that has not run, with Triton's text where Triton has the same case.
func refusal(r *infer.Request, reason errs.Reason) *errs.Error {
	id := r.ID
	if id == "" {
		id = "<id_unknown>"
	}
	switch reason {
	case errs.MaxQueueSize:
		return refused(r.Model, reason, "[request id: %s] Exceeds maximum queue size", id)
	case errs.QueueTimeout:
		return refused(r.Model, reason, "Request timeout expired") // Triton's text also lacks the request's id
	case errs.CorrelationMissing:
		return refused(r.Model, reason, "inference request to model '%s' must specify a non-zero or non-empty correlation ID", r.Model.Name)
	case errs.BatchSizeExceeded: // the gateway has checked other models' requests
		return refused(r.Model, reason, "inference request to model '%s' must specify batch-size 1 due to requirements of sequence batcher", r.Model.Name)
	case errs.SequenceNotStarted:
		return refused(r.Model, reason, "inference request for sequence %s to model '%s' must specify the START flag on the first request of the sequence",
			r.Sequence.CorrelationID(), r.Model.Name)
	case errs.SequenceTimeout:
		return refused(r.Model, reason, "timeout of the corresponding sequence has been expired")
	case errs.SequenceLost:
		if r.Sequence.ID == 0 && r.Sequence.Key == "" {
			return iterationLost(r.Model)
		}
		return refused(r.Model, reason, "sequence %s of model '%s' cannot go on: one of its requests was not run, or its state is gone", r.Sequence.CorrelationID(), r.Model.Name)
	case errs.QueueFull:
		return refused(r.Model, reason, "[request id: %s] the server's queue is full", id)
	case errs.ModelNotReady:
		return refused(r.Model, reason, "Request for unknown model: '%s' version %d is not at ready state", r.Model.Name, r.Model.Version)
	case errs.NoWorker:
		return refused(r.Model, reason, "no worker holds an instance of model '%s' version %d", r.Model.Name, r.Model.Version)
	case errs.DeadlineQueue:
		return refused(r.Model, reason, "[request id: %s] the deadline passed while the request waited", id)
	case errs.DeadlineUnmeetable:
		return refused(r.Model, reason, "[request id: %s] the request could not be expected to finish by its deadline", id)
	case errs.DeadlineTooShort: // the text of clients when their own deadline passes
		return refused(r.Model, reason, "Deadline Exceeded")
	case errs.CallDeadlock:
		return refused(r.Model, reason, "the call would wait for itself: every instance of model '%s', or what it needs, is held by batches that wait for the call; "+
			"give the model more instances", r.Model.Name)
	case errs.Canceled:
		return refused(r.Model, reason, "")
	case errs.InstanceCrashed:
		return refused(r.Model, reason, "[request id: %s] the worker that may have run the request is gone", id)
	}
	return refused(r.Model, reason, "[request id: %s] %s", id, reason.Summary())
}

func iterationLost(m infer.ModelRef) *errs.Error {
	return refused(m, errs.SequenceLost, "the request cannot run its next iteration: the scheduler or the worker that had it is gone")
}

func refused(m infer.ModelRef, reason errs.Reason, format string, args ...any) *errs.Error {
	return errs.New(reason, format, args...).WithModel(m.Name)
}
