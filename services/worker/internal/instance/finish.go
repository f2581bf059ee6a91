package instance

import (
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
)

// mark sets the end of a phase, once.
func (b *batch) mark(at *mono.Time) {
	now := b.lane.executor.deps.Clock.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if *at == 0 && !b.done {
		*at = now
	}
}

// Done ends the batch. Only its first call counts.
func (b *batch) Done() {
	b.mu.Lock()
	if b.done {
		b.mu.Unlock()
		return
	}
	b.done = true
	b.stop = nil
	later := b.stopping // then whoever calls stop ends the batch
	b.mu.Unlock()
	if !later {
		b.end()
	}
}

// reject ends a batch that is not run, with one error for all.
func (b *batch) reject(as infer.Outcome, err *errs.Error) {
	b.mu.Lock()
	b.done = true
	b.mu.Unlock()
	for i, r := range b.order.Requests {
		b.slots[i].ended = true
		b.completed.Outcomes[i] = as
		b.send(r, infer.Refuse(r.Work, err))
	}
	b.end()
	b.release()
}

// end answers what is left, and gives the completion and with it the order
// back to the scheduler. It is called once; done keeps everybody else away.
func (b *batch) end() {
	e, l := b.lane.executor, b.lane
	b.failRest()
	c := b.completed
	b.completed = nil
	b.settle(e.deps.Clock.Now())
	c.Order, c.Epoch, c.Instance = b.order.ID, b.order.Epoch, b.order.Instance
	c.Rows, c.Timing, c.Credits = b.rows, b.timing, 1
	if b.record != nil {
		e.deps.Ledger.End(b.record, c)
	}
	if l.spec.Observe != nil && c.Executions > 0 {
		l.spec.Observe(c.Timing)
	}
	e.forget(b)
	b.order = nil
	<-l.turns
	e.deps.Scheduler.Complete(c)
	b.release()
	l.work.Done()
}

// failRest answers the requests that the backend forgot.
func (b *batch) failRest() {
	for i, r := range b.order.Requests {
		if b.slots[i].ended {
			continue
		}
		b.slots[i].ended = true
		response := &infer.Response{Final: true, Index: b.slots[i].next, Err: b.forgotten()}
		b.completed.Outcomes[i] = outcome(&b.slots[i], response.Err)
		b.send(r, response)
	}
}

func (b *batch) forgotten() error {
	what := "ended the batch without an answer to this request"
	if b.broken.Load() {
		what = "panicked while it ran the batch"
	}
	return errs.New(errs.Bug, "the backend of instance %s %s", b.lane.spec.Name, what).WithModel(b.lane.spec.Model.Name)
}

// settle gives phases that were not marked an end, so that they add up.
func (b *batch) settle(now mono.Time) {
	t := &b.timing
	t.Done = now
	if t.InputDone == 0 {
		t.InputDone = t.Start
	}
	if t.InferDone == 0 {
		t.InferDone = now
	}
}

// release gives up one of the two uses of the batch; the last recycles it.
func (b *batch) release() {
	if b.users.Add(-1) == 0 && !b.broken.Load() {
		b.lane.executor.recycle(b)
	}
}
