package dispatch

import (
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/scheduler/internal/core"
	"github.com/nereid-serving/nereid/services/scheduler/internal/stats"
)

// apply does what one action says.
func (l *Loop) apply(a *core.Action) {
	switch a.Kind {
	case core.Dispatch:
		l.dispatch(a.Batch)
	case core.Finish:
		l.finish(a.Item, a.Reason, a.Retry)
	case core.Abort:
		l.abort(a.Batch, a.Item, a.Reason)
	case core.Lost:
		l.lost(a.Item, a.Batch)
	case core.Passed:
		l.passed(a.Batch)
	case core.Disowned:
		for _, r := range a.Order.Requests {
			r.Release()
		}
	case core.Requeued:
		l.requeued(a.Batch)
	case core.Finished:
		l.finished(a.Batch, a.Completion)
	case core.Retired:
		if e := l.executors[a.Instance.Worker]; e != nil {
			e.Retired(a.Instance)
		}
	}
}

func (l *Loop) dispatch(b *core.Batch) {
	if c := l.stats.Of(b.Model); c != nil {
		c.Started(counted(b.Items))
		c.Runs(len(b.Items))
	}
	l.executors[b.Order.Instance.Worker].Execute(&b.Order)
}

// counted is how many of the items the statistics have as pending: all but
// those that came before their model's configuration.
func counted(items []*core.Item) (n int) {
	for _, it := range items {
		if it.Counted {
			n++
		}
	}
	return n
}

// finish ends a request that has not run. One whose content is gone goes back
// to its gateway, which may know of a newer one. To a gateway that cannot be
// reached nothing is said: it would take that for a word on what it submits
// again.
func (l *Loop) finish(it *core.Item, reason errs.Reason, retry time.Duration) {
	answer := infer.Refuse(it.Work, refusal(it.Request, reason).WithRetry(retry))
	if reason == errs.ModelNotReady || reason == errs.NoWorker {
		answer.Returned = it.Request
	} else {
		it.Request.Release()
	}
	if c := l.stats.Of(it.Model); c != nil {
		if !byOthers(reason) {
			c.Refused(reason, l.clock.Now().Sub(it.Enqueued))
		}
		if it.Counted {
			c.Started(1)
		}
	}
	if reason != errs.PeerUnreachable {
		l.responder.Respond(answer)
	}
	l.recycle(it)
}

// byOthers reports whether others finish, and count, a request that ends here
// for the reason.
func byOthers(reason errs.Reason) bool {
	switch reason {
	case errs.SchedulerDeposed, errs.RequestUnderway, errs.RequestFinished, errs.PeerUnreachable:
		return true
	}
	return false
}

// abort stops waiting for a request that runs. Its deadline is answered here
// and now; the executor may take long to hear, and a cancelled client hears
// nothing.
func (l *Loop) abort(b *core.Batch, it *core.Item, reason errs.Reason) {
	if reason == errs.DeadlineCompute {
		l.responder.Respond(infer.Refuse(it.Work, refused(it.Model, reason, "the deadline passed while the request ran")))
	}
	if e := l.executors[b.Order.Instance.Worker]; e != nil {
		e.Cancel(b.Order.ID, it.Work.Request)
	}
}

func (l *Loop) lost(it *core.Item, b *core.Batch) {
	if b.Kept {
		it.Request.Release()
	}
	if c := l.stats.Of(it.Model); c != nil {
		c.Runs(-1)
		c.Lost(l.clock.Now().Sub(it.Enqueued))
	}
	err := refused(it.Model, errs.InstanceCrashed, "the worker that ran the request is gone") // of an adopted one the model is not known
	l.responder.Respond(infer.Refuse(it.Work, err))
	l.recycle(it)
}

// passed ends a batch whose answers are others' affair.
func (l *Loop) passed(b *core.Batch) {
	if c := l.stats.Of(b.Model); c != nil && !b.Adopted {
		c.Runs(-len(b.Items))
	}
	for _, it := range b.Items {
		if b.Kept {
			it.Request.Release()
		}
		l.recycle(it)
	}
}

func (l *Loop) requeued(b *core.Batch) {
	c := l.stats.Of(b.Model)
	if c == nil {
		return
	}
	c.Runs(-len(b.Items))
	for range counted(b.Items) {
		c.Submitted()
	}
}

func (l *Loop) finished(b *core.Batch, done *infer.Completion) {
	l.served = l.served[:0]
	for i, it := range b.Items {
		if b.Kept {
			it.Request.Release()
		}
		if i < len(done.Outcomes) {
			l.served = append(l.served, served(b, i, done))
		}
		l.recycle(it)
	}
	if c := l.stats.Of(b.Model); c != nil {
		if !b.Adopted {
			c.Runs(-len(b.Items))
		}
		c.Completed(done, l.served)
	}
}

func served(b *core.Batch, i int, done *infer.Completion) stats.Served {
	it := b.Items[i]
	s := stats.Served{Outcome: done.Outcomes[i], Rows: it.Rows, Enqueued: it.Enqueued, Dispatched: b.Dispatched}
	if i < len(done.FirstResponses) {
		s.FirstResponse = done.FirstResponses[i]
	}
	return s
}

func (l *Loop) recycle(it *core.Item) {
	it.Reset()
	l.items.Put(it)
}

// refusal is the error for a request that has not run, with Triton's text
// where Triton has the case.
func refusal(r *infer.Request, reason errs.Reason) *errs.Error {
	id := r.ID
	if id == "" {
		id = "<id_unknown>"
	}
	switch reason {
	case errs.MaxQueueSize:
		return refused(r.Model, reason, "[request id: %s] Exceeds maximum queue size", id)
	case errs.QueueTimeout:
		return refused(r.Model, reason, "Request timeout expired") // in Triton, too, without the request's id
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
	case errs.Cancelled:
		return refused(r.Model, reason, "")
	case errs.InstanceCrashed:
		return refused(r.Model, reason, "[request id: %s] the worker that may have run the request is gone", id)
	}
	return refused(r.Model, reason, "[request id: %s] %s", id, reason.Summary())
}

func refused(m infer.ModelRef, reason errs.Reason, format string, args ...any) *errs.Error {
	return errs.New(reason, format, args...).WithModel(m.Name)
}
