// Package batches is the worker's one table of batches, from their arrival to
// their end, and the source of its reports to schedulers.
//
// # States
//
// A batch is fetching while its inputs are brought, then queued in its instance's
// queue, running, and done. The table forgets a batch that is done, but remembers
// the identities of its requests, so that nothing starts twice. An instance may be
// free of a batch whose units have responses to come; such a batch continues
// without a credit.
//
// # Sessions
//
// The hello of a session, derived from the table alone, tells a scheduler what the
// worker has; after that the scheduler learns of each change. A change between the
// hello and the session's start is reported when the session starts. A change of a
// batch that the scheduler does not know is not reported: the hello has named its
// result.
//
// # Fencing
//
// Each hello contains the highest epoch of a scheduler seen so far. A scheduler
// with a lower epoch has been deposed: its session does not start, and its batches
// are returned. A session has ended, and delivers nothing more, before the next
// hello.
package batches

import (
	"slices"
	"sync"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
)

// State is the stage of a batch.
type State uint8

// The states.
const (
	Fetching State = iota + 1
	Queued
	Running
)

// Table is safe for concurrent use. It calls nobody but holders of sequences, and these without holding its lock.
type Table struct {
	mu      sync.Mutex
	batches map[infer.BatchID]*entry      // guarded by mu
	done    infer.Recent                  // requests that have ended; guarded by mu
	grants  map[infer.InstanceID]*granted // guarded by mu
	epoch   uint64                        // the highest epoch seen; guarded by mu
	session uint64                        // counts the hellos; guarded by mu
	started bool                          // the session has started; guarded by mu
	closed  bool                          // the worker has ended; guarded by mu
	holders map[infer.InstanceID]Holder   // guarded by mu
	spare   []*entry                      // guarded by mu
	waiting []Report                      // to be reported when the session starts; guarded by mu
}

// granted is an instance that the scheduler may use.
type granted struct {
	infer.Grant
	retiring bool
}

// entry is a batch that is not done.
type entry struct {
	id       infer.BatchID
	instance infer.InstanceID
	state    State
	free     bool // its instance is free of it
	units    []unit
	ending   []uint32 // slots of the instance whose sequences end with a unit
	missing  int      // units whose inputs are being fetched
	arrived  uint64   // the session in which it arrived; 0 in one process
	known    uint64   // the last session whose scheduler knows it: in which it arrived, or whose hello named it
	run      any
}

// unit is a request of a batch.
type unit struct {
	work    infer.Work
	size    int64
	ended   bool
	outcome infer.Outcome // of a unit that never reached the instance
}

// Unit identifies a request of a batch.
type Unit struct {
	Batch   infer.BatchID
	Request infer.RequestID
}

// Holder holds the states of an instance's sequences. Sequences may be called at any time; it omits the names of the
// instance and its model.
type Holder interface{ Sequences() []infer.HeldSequence }

// Report is a change to report to a scheduler: either Free or Done, or that the session must end so that the next
// hello reports the change.
type Report struct {
	Free  *infer.InstanceFree
	Done  *infer.UnitDone
	Close bool
}

// Telling says whether to report a change.
type Telling uint8

// Whether to report a change.
const (
	// Nobody: the next hello includes it.
	Nobody Telling = iota
	// Now: the session has started, and its scheduler knows the batch.
	Now
	// Hello: the session must end, since only a hello can report the change.
	Hello
)

// New returns an empty table.
func New() *Table {
	return &Table{batches: make(map[infer.BatchID]*entry), grants: make(map[infer.InstanceID]*granted), holders: make(map[infer.InstanceID]Holder)}
}

// Arrive adds a batch that arrived in the current session. missing lists the requests whose inputs must be fetched,
// and run is who fetches them. An error means that the batch is returned: its reason is scheduler_deposed.
func (t *Table) Arrive(b *infer.Batch, missing []int, run any) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.enter(b)
	e.missing, e.arrived, e.known = len(missing), t.session, t.session
	for _, r := range b.Requests {
		e.units = append(e.units, unit{work: r.Work, size: r.BatchSize})
	}
	for i := range b.Slots {
		if b.Slots[i].Sequence.End {
			e.ending = append(e.ending, b.Slots[i].Index)
		}
	}
	if e.missing > 0 {
		e.state, e.run = Fetching, run
	}
	if b.ID.Epoch < t.epoch {
		return errs.New(errs.SchedulerDeposed, "the scheduler of epoch %d has been replaced", b.ID.Epoch)
	}
	return nil
}

// enter creates the entry of a batch, or reuses one.
func (t *Table) enter(b *infer.Batch) *entry {
	var e *entry
	if n := len(t.spare); n > 0 {
		e = t.spare[n-1]
		t.spare = t.spare[:n-1]
	} else {
		e = new(entry)
	}
	*e = entry{id: b.ID, instance: b.Instance, state: Queued, units: e.units[:0], ending: e.ending[:0]}
	t.batches[b.ID] = e
	return e
}

// drop removes a batch.
func (t *Table) drop(e *entry) {
	delete(t.batches, e.id)
	t.spare = append(t.spare, e)
}

// Fetched says that the inputs of a unit have arrived or, if failed, cannot be fetched: then the unit has been
// answered with outcome. It reports whether the batch is queued now.
func (t *Table) Fetched(id infer.BatchID, i int, failed bool, outcome infer.Outcome) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.batches[id]
	if e == nil {
		return false
	}
	e.units[i].ended, e.units[i].outcome = failed, outcome
	if e.missing--; e.missing > 0 {
		return false
	}
	e.state, e.run = Queued, nil
	return true
}

// End records that a unit of a batch that is fetching has ended, and reports whether it had not ended before.
func (t *Table) End(id infer.BatchID, i int, outcome infer.Outcome) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.batches[id]
	if e == nil || e.state != Fetching || e.units[i].ended {
		return false
	}
	e.units[i].ended, e.units[i].outcome = true, outcome
	return true
}

// Left returns which units of a batch have not ended.
func (t *Table) Left(id infer.BatchID) (left []bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.batches[id]; e != nil {
		for i := range e.units {
			left = append(left, !e.units[i].ended)
		}
	}
	return left
}

// Take sets who runs a batch, and adds the batch if it came from within the process.
func (t *Table) Take(b *infer.Batch, run any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.batches[b.ID]
	if e == nil {
		e = t.enter(b)
	}
	e.run = run
}

// Start says that the instance has started the batch.
func (t *Table) Start(id infer.BatchID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.batches[id]; e != nil {
		e.state = Running
	}
}

// With calls f with whoever runs the batch, holding the lock. It reports false if nobody runs it.
func (t *Table) With(id infer.BatchID, f func(run any)) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.batches[id]
	if e == nil || e.run == nil {
		return false
	}
	f(e.run)
	return true
}

// Each calls f for each batch that somebody runs, holding the lock.
func (t *Table) Each(f func(id infer.BatchID, run any)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, e := range t.batches {
		if e.run != nil {
			f(id, e.run)
		}
	}
}

// Of returns the requests of a gateway, by its incarnation, that have not ended.
func (t *Table) Of(gateway uint64) (list []Unit) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, e := range t.batches {
		for i := range e.units {
			if u := &e.units[i]; !u.ended && u.work.Request.Origin == gateway {
				list = append(list, Unit{id, u.work.Request})
			}
		}
	}
	return list
}

// Release says that nobody runs the batch any more. A batch from within the process is then done.
func (t *Table) Release(id infer.BatchID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.batches[id]
	if e == nil {
		return
	}
	if e.run = nil; e.arrived == 0 {
		t.drop(e)
	}
}

// Free records that an instance is free of a batch. f names the units that were run; Free extends it to all units of
// the batch, and records those that have ended.
func (t *Table) Free(f *infer.InstanceFree) Telling {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.batches[f.Batch]
	if e == nil || e.free {
		return Nobody
	}
	e.name(f)
	e.free = true
	for i := range e.units {
		if len(f.Ends) == 0 || f.Ends[i] != infer.UnitMore {
			e.units[i].ended = true
			t.done.Add(e.units[i].work.Request)
		}
	}
	return t.tell(e, Report{Free: f})
}

// name extends f to all units, if some ended before the batch was run.
func (e *entry) name(f *infer.InstanceFree) {
	if len(f.Outcomes) == len(e.units) {
		return
	}
	outcomes, ends, firsts, responses := make([]infer.Outcome, len(e.units)), f.Ends, f.FirstResponses, f.Responses
	if f.Ends != nil {
		f.Ends = make([]infer.UnitEnd, len(e.units))
	}
	if f.FirstResponses != nil {
		f.FirstResponses = make([]mono.Time, len(e.units))
	}
	if f.Responses != nil {
		f.Responses = make([]infer.UnitResponses, len(e.units))
	}
	n := 0
	for i := range e.units {
		if e.units[i].ended {
			outcomes[i] = e.units[i].outcome
			continue
		}
		outcomes[i] = f.Outcomes[n]
		if ends != nil {
			f.Ends[i] = ends[n]
		}
		if firsts != nil {
			f.FirstResponses[i] = firsts[n]
		}
		if responses != nil {
			f.Responses[i] = responses[n]
		}
		n++
	}
	f.Outcomes = outcomes
}

// Done records that a unit has ended after its instance was free.
func (t *Table) Done(d *infer.UnitDone) Telling {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.batches[d.Batch]
	if e == nil || !e.free {
		return Nobody
	}
	i := slices.IndexFunc(e.units, func(u unit) bool { return !u.ended && u.work.Unit() == d.Work.Unit() })
	if i < 0 {
		return Nobody
	}
	e.units[i].ended = true
	t.done.Add(d.Work.Request)
	return t.tell(e, Report{Done: d})
}

// Return records that a batch that has not started is returned. Those of its units that were answered count as
// started.
func (t *Table) Return(b *infer.Batch) Telling {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.batches[b.ID]
	if e == nil {
		return Hello
	}
	for _, u := range e.units {
		if !slices.ContainsFunc(b.Requests, func(r *infer.Request) bool { return r.Work.Request == u.work.Request }) {
			t.done.Add(u.work.Request)
		}
	}
	defer t.drop(e)
	switch {
	case t.started && e.arrived == t.session:
		return Now
	case !t.started && e.known == t.session:
		t.waiting = append(t.waiting, Report{Close: true})
		return Nobody
	}
	return Hello
}

// tell removes a batch that is done, and says whether to report a change of it. It retains a change that is to be
// reported later; the credits of that change are included in the grants.
func (t *Table) tell(e *entry, r Report) Telling {
	if !slices.ContainsFunc(e.units, func(u unit) bool { return !u.ended }) {
		defer t.drop(e)
	}
	switch {
	case e.known != t.session:
		return Nobody
	case t.started:
		return Now
	}
	if r.Free != nil {
		r.Free.Credits = 0
	}
	t.waiting = append(t.waiting, r)
	return Nobody
}
