package instance

import (
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// Execute accepts a batch whose inputs can be read. It returns a batch that no instance can accept.
func (e *Executor) Execute(of *infer.Batch) {
	b, early, err := e.accept(of)
	switch {
	case err != nil:
		e.deps.Scheduler.Return(of, err)
	case b != nil:
		b.lane.pass(b, early)
	}
}

// accept queues a batch in its lane. It returns the batch instead if the caller should pass it on immediately,
// without switching to the lane's goroutine: either nothing is ahead of it or, if early, only what the instance
// already has.
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
		l.turns <- struct{}{} // never blocks: whoever has a turn is counted
		l.passing++
		return b, false, nil
	case len(l.next) < l.ahead && len(l.turns) == cap(l.turns) && l.queued+l.passing == 0:
		l.next = append(l.next, b)
		l.passing++
		return b, true, nil
	}
	l.queued++
	l.queue <- b // never blocks: taken counts what is queued and what runs
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

// giveBack ends a batch of which the instance has started nothing, and returns it to the scheduler.
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
	b.log(0) // if the instance was found to be away when it was about to start
	e.deps.Batches.Release(of.ID)
	e.leave(b)
	e.deps.Scheduler.Return(of, err)
	b.lane.work.Done()
	b.release()
}
