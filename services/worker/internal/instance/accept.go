package instance

import (
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// Execute takes over a batch whose inputs can be read. One that no instance can
// take is returned.
func (e *Executor) Execute(of *infer.Batch) {
	b, err := e.accept(of)
	switch {
	case err != nil:
		e.deps.Scheduler.Return(of, err)
	case b != nil:
		b.lane.take(b, true)
	}
}

// accept queues a batch in its lane, or returns it if the caller is to have it taken
// at once, without a switch to the lane's goroutine: nothing is before it then.
func (e *Executor) accept(of *infer.Batch) (atOnce *batch, err error) {
	now := e.deps.Clock.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.lanes[of.Instance]
	if l == nil {
		return nil, errs.New(errs.NoWorker, "the worker has no instance %d any more", of.Instance.Slot)
	}
	if l.taken == l.credits {
		return nil, errs.New(errs.Bug, "instance %s got more batches than its %d credits", l.spec.Name, l.credits)
	}
	l.taken++
	b := e.blank()
	b.begin(l, of)
	b.accepted = now
	e.deps.Batches.Take(of, b)
	l.work.Add(1)
	if l.prompt != nil && l.taken == 1 {
		select {
		case l.turns <- struct{}{}:
			return b, nil
		default: // the batch before is about to leave
		}
	}
	l.queue <- b    // has room: taken counts what is queued and what runs
	return nil, nil //nolint:nilnil // queued
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

// giveBack ends a batch that has not started, and returns it.
func (e *Executor) giveBack(b *batch, err error) {
	of := b.of
	b.mu.Lock()
	b.done = true
	for i := range of.Slots {
		b.pauseLocked(i)
	}
	b.mu.Unlock()
	e.deps.Batches.Release(of.ID)
	e.leave(b.lane, b.pausing)
	e.deps.Scheduler.Return(of, err)
	b.lane.work.Done()
	b.release()
	b.release()
}
