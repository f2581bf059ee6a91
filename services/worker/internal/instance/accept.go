package instance

import (
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// Execute takes over an order. One that no lane can take is given back.
func (e *Executor) Execute(o *infer.Order) {
	if err := e.accept(o); err != nil {
		e.deps.Scheduler.Refuse(o, err)
	}
}

// accept makes a batch of the order and queues it in its lane.
func (e *Executor) accept(o *infer.Order) error {
	now := e.deps.Clock.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.lanes[o.Instance]
	if l == nil {
		return errs.New(errs.NoWorker, "the worker has no instance %d any more", o.Instance.Slot)
	}
	if l.taken == l.credits {
		return errs.New(errs.Bug, "instance %s got more orders than its %d credits", l.spec.Name, l.credits)
	}
	l.taken++
	b := e.blank()
	b.begin(l, o)
	b.accepted = now
	e.running[keyOf(o)] = b
	l.work.Add(1)
	l.queue <- b // has room: taken counts what is queued and what runs
	return nil
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

// giveBack ends a batch that has not begun, and gives its order back.
func (e *Executor) giveBack(b *batch, err error) {
	o := b.order
	b.mu.Lock()
	b.done = true
	b.mu.Unlock()
	e.forget(b)
	b.order = nil
	<-b.lane.turns
	e.deps.Scheduler.Refuse(o, err)
	b.lane.work.Done()
	b.release()
	b.release()
}
