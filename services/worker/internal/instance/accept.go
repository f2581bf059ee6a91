package instance

import (
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// Execute takes over a batch whose inputs can be read. One that no instance can
// take is returned.
func (e *Executor) Execute(of *infer.Batch) {
	b, early, err := e.accept(of)
	switch {
	case err != nil:
		e.deps.Scheduler.Return(of, err)
	case b != nil:
		b.lane.pass(b, early)
	}
}

// accept queues a batch in its lane, or returns it if the caller is to pass it on at
// once, without a switch to the lane's goroutine: nothing is before it then, or, where
// it is early, nothing that the instance does not have.
func (e *Executor) accept(of *infer.Batch) (atOnce *batch, early bool, err error) {
	now := e.deps.Clock.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.lanes[of.Instance]
	if l == nil {
		return nil, false, errs.New(errs.NoWorker, "the worker has no instance %d any more", of.Instance.Slot)
	}
	if l.taken == l.credits {
		return nil, false, errs.New(errs.Bug, "instance %s got more batches than its %d credits", l.spec.Name, l.credits)
	}
	l.taken++
	b := e.blank()
	b.begin(l, of)
	b.accepted = now
	e.deps.Batches.Take(of, b)
	l.work.Add(1)
	switch {
	case l.prompt != nil && l.taken == 1:
		l.turns <- struct{}{} // has room: nobody has a turn who is not counted
		l.passing++
		return b, false, nil
	case len(l.next) < l.ahead && len(l.turns) == cap(l.turns) && l.queued+l.passing == 0:
		l.next = append(l.next, b)
		l.passing++
		return b, true, nil
	}
	l.queued++
	l.queue <- b // has room: taken counts what is queued and what runs
	return nil, false, nil
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

// giveBack ends a batch of which the instance has begun nothing, and returns it.
func (e *Executor) giveBack(b *batch, err error) {
	of := b.of
	b.mu.Lock()
	b.done = true
	for i := range b.slots {
		b.slots[i].outcome = infer.Rejected
	}
	for i := range of.Slots {
		b.pauseLocked(i)
	}
	b.mu.Unlock()
	b.log(0) // where the instance was found to be away when it was to begin
	e.deps.Batches.Release(of.ID)
	e.leave(b)
	e.deps.Scheduler.Return(of, err)
	b.lane.work.Done()
	b.release()
}
