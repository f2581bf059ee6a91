package instance

import (
	"slices"

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

// Free says that the instance can accept its next batch. Requests without a final response get theirs later, before
// Done. Only the first call counts.
func (b *batch) Free() {
	now := b.lane.executor.deps.Clock.Now()
	b.mu.Lock()
	f := b.end
	if b.done || b.freed {
		b.mu.Unlock()
		return
	}
	b.freed, b.freeing, b.end = true, true, nil
	b.fill(f, now)
	b.of = &infer.Batch{ID: b.of.ID, Instance: b.of.Instance, Requests: slices.Clone(b.of.Requests), Enqueued: slices.Clone(b.of.Enqueued)} // it is the scheduler's with its last unit
	b.mu.Unlock()
	b.free(f)
	for {
		b.mu.Lock()
		ended := b.ended
		b.ended = nil
		b.freeing = len(ended) > 0
		over := !b.freeing && b.done && !b.stopping
		b.mu.Unlock()
		if over {
			b.over()
		}
		if len(ended) == 0 {
			return
		}
		for _, d := range ended {
			b.lane.executor.deps.Scheduler.UnitDone(d)
		}
	}
}

// fill completes the report that an instance is free. The caller holds the lock.
func (b *batch) fill(f *infer.InstanceFree, now mono.Time) {
	t := &b.timing
	t.Done = now // unmarked phases get an end, so that they add up
	if t.Start == 0 {
		t.Start = now
	}
	t.InputDone = max(t.InputDone, t.Start)
	if t.InferDone == 0 {
		t.InferDone = now
	}
	f.Batch, f.Instance = b.of.ID, b.of.Instance
	f.BatchSize, f.Timing, f.Credits, f.Executions = b.size, b.timing, 1, b.runs
	for i := range b.slots {
		s := &b.slots[i]
		f.Outcomes[i] = s.outcome
		end := s.end()
		if end == infer.UnitEnded {
			s.fill(f, i)
			continue
		}
		if f.Ends == nil {
			f.Ends = make([]infer.UnitEnd, len(b.slots))
		}
		f.Ends[i] = end
		if end == infer.UnitAgain {
			f.Again = append(f.Again, b.of.Requests[i])
		}
	}
}

// end returns what becomes of the request.
func (s *slot) end() infer.UnitEnd {
	switch {
	case !s.ended:
		return infer.UnitMore
	case s.again:
		return infer.UnitAgain
	}
	return infer.UnitEnded
}

// fill adds the responses to request i, which has ended, to the report.
func (s *slot) fill(f *infer.InstanceFree, i int) {
	if len(s.responses.Times) > 0 {
		if f.Responses == nil {
			f.Responses = make([]infer.UnitResponses, len(f.Outcomes))
		}
		f.Responses[i] = s.responses
	}
	if s.first != 0 {
		if f.FirstResponses == nil {
			f.FirstResponses = make([]mono.Time, len(f.Outcomes))
		}
		f.FirstResponses[i] = s.first
	}
}

// free lets the lane continue, and notifies the scheduler.
func (b *batch) free(f *infer.InstanceFree) {
	if b.lane.spec.Observe != nil && f.Executions > 0 {
		b.lane.spec.Observe(f.Timing)
	}
	b.lane.executor.leave(b)
	b.lane.executor.deps.Scheduler.InstanceFree(f)
}

// GiveBack ends a batch that has not started, and returns it.
func (b *batch) GiveBack(err error) { b.finish(err) }

// Done ends the batch. Only the first call counts.
func (b *batch) Done() { b.finish(nil) }

func (b *batch) finish(givenBack error) {
	b.mu.Lock()
	if b.done {
		b.mu.Unlock()
		return
	}
	b.done, b.givenBack = true, givenBack
	b.stop, b.each = nil, nil
	for i := range b.slots { // a goroutine that a panic has left behind may wait
		if w := b.slots[i].window; w != nil {
			w.lift()
		}
	}
	later := b.stopping || b.freeing // then whoever does that ends the batch
	b.mu.Unlock()
	if !later {
		b.over()
	}
}

// reject ends a batch that is not run, with the same error for all requests.
func (b *batch) reject(as infer.Outcome, err *errs.Error, now mono.Time) {
	b.mu.Lock()
	b.done, b.timing.Start = true, now
	b.mu.Unlock()
	for i, r := range b.of.Requests {
		b.slots[i].ended, b.slots[i].outcome = true, as
		refusal := infer.Refuse(r.Work, err)
		refusal.Index = b.slots[i].next
		b.send(r, refusal)
	}
	b.over()
	b.release()
}

// over answers the remaining requests, and reports to the scheduler what it does not know yet. It is called once;
// done keeps everybody else out.
func (b *batch) over() {
	e, l, freed := b.lane.executor, b.lane, b.freed
	if b.givenBack != nil {
		e.giveBack(b, b.givenBack)
		return
	}
	for i, r := range b.of.Requests {
		s := &b.slots[i]
		if s.ended {
			continue
		}
		response := &infer.Response{Final: true, Index: s.next, Err: b.forgotten()}
		s.ended, s.outcome = true, outcome(s, response.Err)
		if s.next > 0 {
			b.timeLocked(s, response) // done keeps everybody else out
		}
		work := r.Work
		b.send(r, response)
		if freed {
			b.tell(i, work)
		}
	}
	b.log(b.runs)
	e.deps.Batches.Release(b.of.ID)
	if !freed {
		f := b.end
		b.end = nil
		b.fill(f, e.deps.Clock.Now())
		b.of = nil
		b.free(f)
	}
	b.of = nil
	b.release()
	l.work.Done()
}

// log records how often the model ran, if the log contains the start of the batch.
func (b *batch) log(runs int) {
	if b.entry == nil {
		return
	}
	outcomes := make([]infer.Outcome, len(b.slots))
	for i := range b.slots {
		outcomes[i] = b.slots[i].outcome
	}
	b.lane.executor.deps.Log.End(b.entry, outcomes, runs)
}

func (b *batch) forgotten() error {
	what := "ended the batch without an answer to this request"
	if b.broken.Load() {
		what = "panicked while it ran the batch"
	}
	return errs.New(errs.Bug, "the backend of instance %s %s", b.lane.spec.Name, what).WithModel(b.lane.spec.Model.Name)
}

// release releases one use of the batch; the last release recycles it.
func (b *batch) release() {
	if b.users.Add(-1) == 0 && !b.broken.Load() {
		b.lane.executor.recycle(b)
	}
}
