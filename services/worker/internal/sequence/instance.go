package sequence

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

// Batch is a batch of a model that batches sequences.
type Batch interface {
	backend.Batch
	// Slots[i] is the place of request i.
	Slots() []infer.Slot
	// Pad says that the execution has rows beside those of the requests.
	Pad(rows int64)
}

// Instance is an instance of the backend's that knows of its sequences.
type Instance struct {
	backend.Instance
	model *Model

	mu    sync.Mutex
	slots map[uint32]*slot // guarded by mu
	zeros []byte           // of empty requests; replaced, never written; guarded by mu
}

// Instance gives the sequences of a backend's instance, which it takes over.
func (m *Model) Instance(in backend.Instance) *Instance {
	return &Instance{Instance: in, model: m, slots: make(map[uint32]*slot)}
}

// Execute gives the backend the batch's requests with controls and states. It
// takes [Batch] values alone.
func (in *Instance) Execute(b backend.Batch) {
	placed, ok := b.(Batch)
	if !ok {
		panic("sequence: the batch does not say where its requests are")
	}
	run := in.admit(placed)
	if run == nil {
		b.Done()
		return
	}
	returned := false
	defer func() {
		if !returned { // by a panic, whose batch its owner ends
			run.end()
		}
	}()
	in.Instance.Execute(run)
	returned = true
}

// Close releases the states and frees the instance.
func (in *Instance) Close() error {
	in.drop()
	return in.Instance.Close()
}

// Stop stops the backend's instance, if that can be stopped.
func (in *Instance) Stop() bool {
	s, ok := in.Instance.(backend.Stopper)
	return ok && s.Stop()
}

// Watch watches the backend's instance. When that is away its sequences have lost what
// it had of them; states that the server keeps are there still.
func (in *Instance) Watch(tell func(backend.Condition)) {
	r, ok := in.Instance.(backend.Changing)
	switch {
	case !ok:
	case tell == nil:
		r.Watch(nil)
	default:
		r.Watch(func(c backend.Condition) {
			if c.Away != nil && len(in.model.states) == 0 {
				in.drop()
			}
			tell(c)
		})
	}
}

// drop ends all sequences here.
func (in *Instance) drop() {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, s := range in.slots {
		in.dropLocked(s)
	}
}

// dropLocked ends a sequence here, and releases its states.
func (in *Instance) dropLocked(s *slot) {
	for i := range s.states {
		s.states[i].Data.Release()
	}
	in.model.deps.Held(-s.bytes)
	s.states, s.bytes, s.closed = nil, 0, true
	delete(in.slots, s.index)
}

// takeover is for how long a scheduler may be gone before its successor asks what
// lives: meanwhile requests wait for it, and no sequence is idle.
const takeover = 10 * time.Second

// Sequences are those that live, as a hello tells them but for the instance's and the
// model's names. Each has its whole idle time again, since its next request may have
// been on its way while there was no scheduler. What else there is of sequences is
// dropped, since the scheduler takes those for lost that a hello does not name.
func (in *Instance) Sequences() (list []infer.HeldSequence) {
	in.mu.Lock()
	defer in.mu.Unlock()
	now, idle := in.model.deps.Clock.Now(), in.model.config.Sequences.Idle()
	for _, s := range in.slots {
		switch {
		case s.idle(now)-takeover > idle:
			in.dropLocked(s)
			continue
		case s.ends && s.request == (infer.Work{}):
			continue
		}
		list = append(list, infer.HeldSequence{
			Sequence: infer.Sequence{ID: s.id, Key: s.key}, BatchSlot: s.index, Idle: idle, Request: s.request,
		})
	}
	slices.SortFunc(list, func(a, b infer.HeldSequence) int { return cmp.Compare(a.BatchSlot, b.BatchSlot) })
	return list
}

// admit makes the rows of a batch, and refuses what has no place in it. It returns
// nil if nothing is left.
func (in *Instance) admit(b Batch) *batch {
	if !in.placed(b) {
		err := errs.New(errs.Bug, "the batch does not say where its requests are").WithModel(in.model.ref.Name)
		for i := range b.Requests() {
			b.Respond(i, &infer.Response{Final: true, Err: err})
		}
		return nil
	}
	in.mu.Lock()
	run, lost := in.fillLocked(b)
	in.mu.Unlock()
	slots := b.Slots()
	for _, i := range lost {
		b.Respond(i, &infer.Response{Final: true, Err: errs.New(errs.SequenceLost,
			"the instance does not have the state of sequence %s of model '%s'", slots[i].Sequence.CorrelationID(), in.model.ref.Name).WithModel(in.model.ref.Name)})
	}
	if len(lost) == len(slots) {
		return nil
	}
	b.Pad(run.size - b.BatchSize())
	return run
}

// fillLocked makes the rows of a batch, and lists the requests whose sequences are
// not here.
func (in *Instance) fillLocked(b Batch) (run *batch, lost []int) {
	requests, slots := b.Requests(), b.Slots()
	own := !in.model.config.Sequences.Oldest // each slot has its own row
	run = &batch{Batch: b, in: in}
	if own {
		run.rows = make([]row, in.rowsLocked(slots))
		for at := range run.rows {
			run.rows[at].at = -1
		}
	}
	made := make([]infer.Request, max(len(run.rows), len(requests)))
	head := (*infer.Request)(nil)
	for i, r := range requests {
		s := in.slotLocked(&slots[i])
		if s == nil {
			lost = append(lost, i)
			continue
		}
		at := int(slots[i].Index)
		if !own {
			at = len(run.rows)
			run.rows = append(run.rows, row{})
		}
		run.rows[at] = row{at: i, slot: s}
		if in.model.config.Sequences.Iterative {
			s.request = r.Work
		}
		s.ends = s.ends || slots[i].Sequence.End || r.Sequence.ID == 0 && r.Sequence.Key == ""
		in.make(&made[at], r, &slots[i].Sequence, s)
		if head == nil {
			head = &made[at]
		}
	}
	for at := range run.rows {
		if run.rows[at].at < 0 && head != nil {
			in.makeEmptyLocked(&made[at], head)
		}
		run.requests = append(run.requests, &made[at])
		run.size += made[at].BatchSize
	}
	return run, lost
}

// placed reports whether each request of a batch has a place of its own.
func (in *Instance) placed(b Batch) bool {
	slots := b.Slots()
	seen := make(map[uint32]bool, len(slots))
	for i := range slots {
		if int64(slots[i].Index) >= int64(in.model.config.Sequences.Slots) || seen[slots[i].Index] {
			return false
		}
		seen[slots[i].Index] = true
	}
	return len(slots) == len(b.Requests())
}

// rowsLocked is how many rows an execution has: up to the highest slot that has a
// request, or a sequence that has not been idle for too long.
func (in *Instance) rowsLocked(slots []infer.Slot) (rows uint32) {
	for i := range slots {
		rows = max(rows, slots[i].Index+1)
	}
	now, idle := in.model.deps.Clock.Now(), in.model.config.Sequences.Idle()
	for index, s := range in.slots {
		if s.idle(now) <= idle {
			rows = max(rows, index+1)
		}
	}
	return rows
}

// slotLocked returns the slot in which a request finds its sequence, or nil. A START
// begins it there anew.
func (in *Instance) slotLocked(place *infer.Slot) *slot {
	s := in.slots[place.Index]
	switch {
	case place.Sequence.Start:
		if s != nil {
			in.dropLocked(s)
		}
		s = &slot{index: place.Index, id: place.Sequence.ID, key: place.Sequence.Key}
		for i := range in.model.states {
			t := in.model.states[i].initial
			t.Data = t.Data.Retain()
			s.states = append(s.states, t)
		}
		in.slots[place.Index] = s
	case s == nil || s.id != place.Sequence.ID || s.key != place.Sequence.Key:
		return nil
	}
	s.runs = true
	return s
}

// make writes the request that the backend sees. What the request has already, as
// those of a warm-up may, stays.
func (in *Instance) make(to, r *infer.Request, sequence *infer.Sequence, s *slot) {
	m := in.model
	*to = *r
	to.Sequence = *sequence
	to.Inputs = make([]infer.Tensor, len(r.Inputs), len(r.Inputs)+len(m.controls)+len(m.states))
	copy(to.Inputs, r.Inputs)
	add := func(t infer.Tensor) {
		for i := range r.Inputs {
			if r.Inputs[i].Name == t.Name {
				return
			}
		}
		to.Inputs = append(to.Inputs, t)
	}
	for i := range m.controls {
		add(m.controls[i].of(sequence, true))
	}
	for _, t := range s.states {
		add(t)
	}
	if len(r.Outputs) == 0 || len(m.states) == 0 {
		return
	}
	to.Outputs = make([]infer.Output, len(r.Outputs), len(r.Outputs)+len(m.states))
	copy(to.Outputs, r.Outputs)
	for i := range m.states {
		if name := m.states[i].config.Output; !r.Wants(name) {
			to.Outputs = append(to.Outputs, infer.Output{Name: name})
		}
	}
}

// makeEmptyLocked writes the request of a slot without one, alike the batch's first.
func (in *Instance) makeEmptyLocked(to, head *infer.Request) {
	*to = infer.Request{Model: head.Model, BatchSize: 1, Received: head.Received}
	for i := range head.Inputs {
		t := head.Inputs[i]
		if c := in.control(t.Name); c != nil {
			t = c.of(&to.Sequence, false)
		} else {
			t.Data = in.zeroLocked(&t)
		}
		to.Inputs = append(to.Inputs, t)
	}
}

func (in *Instance) control(input string) *control {
	for i := range in.model.controls {
		if c := &in.model.controls[i]; c.input.Name == input {
			return c
		}
	}
	return nil
}

// zeroLocked returns zeros for a tensor; its elements are empty if they are strings.
func (in *Instance) zeroLocked(t *infer.Tensor) tensor.Ref {
	n := t.Data.Length
	if t.Datatype == tensor.Bytes {
		elements, _ := t.Shape.Elements() // the shape was checked to be sane
		n = elements * int64(len(tensor.AppendBytes(nil, "")))
	}
	if int64(len(in.zeros)) < n {
		in.zeros = make([]byte, n)
	}
	return tensor.InHeap(in.zeros[:n:n])
}
