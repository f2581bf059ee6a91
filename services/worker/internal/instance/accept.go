package instance

import (
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// Execute takes over an order. One that no lane can take is answered with a
// refusal and completed at once.
func (e *Executor) Execute(o *infer.Order) {
	if l, err := e.accept(o); err != nil {
		e.refuse(o, l, err)
	}
}

// accept makes a batch of the order and queues it in its lane. The lane is
// returned if the scheduler is the present one.
func (e *Executor) accept(o *infer.Order) (*lane, *errs.Error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if o.Epoch < e.epoch {
		return nil, errs.New(errs.NoWorker, "the order came from a scheduler of epoch %d, which was replaced by that of epoch %d", o.Epoch, e.epoch)
	}
	e.epoch = o.Epoch
	l := e.lanes[o.Instance]
	if l == nil {
		return nil, errs.New(errs.NoWorker, "the worker has no instance %d any more", o.Instance.Slot)
	}
	if l.taken == l.credits {
		return l, errs.New(errs.Bug, "instance %s got more orders than its %d credits", l.spec.Name, l.credits)
	}
	l.taken++
	b := e.blank()
	b.begin(l, o)
	e.running[o.ID] = b
	l.work.Add(1)
	l.queue <- b // has room: taken counts what is queued and what runs
	return l, nil
}

func (e *Executor) blank() *batch {
	if n := len(e.spare); n > 0 {
		b := e.spare[n-1]
		e.spare[n-1] = nil
		e.spare = e.spare[:n-1]
		return b
	}
	return new(batch)
}

// refuse answers an order that does not run. Its credit is given back if the
// instance exists and its scheduler is the present one.
func (e *Executor) refuse(o *infer.Order, l *lane, err *errs.Error) {
	done := newCompletion(len(o.Requests))
	done.Order, done.Instance = o.ID, o.Instance
	now := e.deps.Clock.Now()
	done.Timing = infer.Timing{Start: now, InputDone: now, InferDone: now, Done: now}
	if l != nil {
		done.Credits = 1
	}
	for i, r := range o.Requests {
		done.Outcomes[i] = infer.Rejected
		work := r.Work
		r.Release()
		e.deps.Responder.Respond(infer.Refuse(work, err))
	}
	e.deps.Scheduler.Complete(done)
}
