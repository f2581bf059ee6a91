package core

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// Models call each other as they are drawn to, as deep and wide as they like: every call
// ends, whatever instances there are and go, and none is refused that could have run.
func TestCallsEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newStorm(t)
		for range rapid.IntRange(1, 40).Draw(t, "requests") {
			if rapid.Bool().Draw(t, "proceeds") {
				s.proceed(t)
			}
			s.submit(t, infer.Parent{}, 0)
		}
		for s.core.InFlight() > 0 {
			s.proceed(t)
		}
	})
}

// storm is the outside of a core whose models call others.
type storm struct {
	core      *Core
	now       mono.Time
	last      uint64
	models    []infer.ModelRef
	decoupled map[infer.ModelRef]bool
	slots     map[infer.ModelRef][]infer.InstanceID // of each model
	calls     map[infer.RequestID]*made
	running   map[infer.BatchID]*run
	order     []infer.BatchID // of running
	left      int             // calls that may be made
}

// made is a call, and what waits for it.
type made struct {
	depth  int
	parent infer.Parent
}

// run is a batch on its instance or, when that is free, what is left of it.
type run struct {
	batch *Batch
	units []infer.Work
	made  map[infer.RequestID]infer.Parent // calls that have not ended
	begun bool                             // it has made its calls
	free  bool
	depth int
}

func newStorm(t *rapid.T) *storm {
	var limit *RateLimit
	if rapid.Bool().Draw(t, "limited") {
		limit = &RateLimit{}
	}
	s := &storm{
		core: New(Config{RateLimit: limit}), now: scriptStart, decoupled: make(map[infer.ModelRef]bool), slots: make(map[infer.ModelRef][]infer.InstanceID),
		calls: make(map[infer.RequestID]*made), running: make(map[infer.BatchID]*run), left: 200,
	}
	s.step(t, &Event{Kind: BecomeLeader})
	worker := infer.InstanceID{Worker: 1}
	s.step(t, &Event{Kind: WorkerConnected, Instance: worker, Held: &infer.Held{}})
	if rapid.Bool().Draw(t, "bound") {
		s.step(t, &Event{Kind: MemoryReported, Instance: worker, Memory: 6})
	}
	for i := range rapid.IntRange(1, 4).Draw(t, "models") {
		ref := infer.ModelRef{Name: fmt.Sprint("m", i), Version: 1, Generation: 1}
		c := &modelconfig.Config{
			MaxBatchSize: rapid.Int64Range(0, 3).Draw(t, "batch"), Decoupled: rapid.Bool().Draw(t, "decoupled"),
			Inputs: []modelconfig.IO{{Name: "x", Dims: tensor.Shape{1}}},
		}
		if n := rapid.Uint32Range(0, 3).Draw(t, "needs"); n > 0 {
			c.Groups = []modelconfig.InstanceGroup{{Name: ref.Name, Resources: []modelconfig.Resource{{Name: "R", Count: n}}}}
		}
		if c.MaxBatchSize > 0 && rapid.Bool().Draw(t, "dynamic") {
			c.Batching = &modelconfig.DynamicBatching{}
		}
		s.models, s.decoupled[ref] = append(s.models, ref), c.Decoupled
		s.step(t, &Event{Kind: Configure, Model: &Model{Ref: ref, Config: c}})
		for range rapid.IntRange(1, 3).Draw(t, "instances") {
			worker.Slot++
			s.slots[ref] = append(s.slots[ref], worker)
			s.step(t, &Event{Kind: Granted, Grant: &infer.Grant{Instance: worker, Model: ref, Name: ref.Name + "_0", Credits: rapid.IntRange(1, 2).Draw(t, "credits")}})
		}
	}
	return s
}

// submit has a client or a parent ask for a model that is drawn.
func (s *storm) submit(t *rapid.T, parent infer.Parent, depth int) {
	s.last++
	it := &Item{
		Request: &infer.Request{Parent: parent, Inputs: []infer.Tensor{{Name: "x", Shape: tensor.Shape{1, 1}}}},
		Work:    infer.Work{Request: infer.RequestID{Origin: 1, Number: s.last}, Attempt: 1},
		Model:   rapid.SampledFrom(s.models).Draw(t, "model"), BatchSize: 1, Bytes: rapid.Int64Range(0, 3).Draw(t, "bytes"), Enqueued: s.now,
	}
	it.Request.Work = it.Work
	s.calls[it.Work.Request] = &made{depth, parent}
	if r := s.running[parent.Batch]; r != nil {
		r.made[it.Work.Request] = parent
	}
	s.step(t, &Event{Kind: Submit, Item: it})
}

func (s *storm) step(t *rapid.T, e *Event) {
	s.now = s.now.Add(time.Microsecond)
	recorded := uint64(0)
	for _, d := range s.core.Step(s.now, e) {
		switch d.Kind {
		case Dispatch:
			r := &run{batch: d.Members(), made: make(map[infer.RequestID]infer.Parent)}
			for _, it := range d.Members().Items {
				r.units = append(r.units, it.Work)
				r.depth = max(r.depth, s.calls[it.Work.Request].depth)
			}
			s.running[d.Batch] = r
			s.order = append(s.order, d.Batch)
		case Refuse:
			if d.Reason != errs.MemoryPressure && (d.Reason != errs.CallDeadlock || s.calls[d.Unit.Request].parent == infer.Parent{}) {
				t.Fatalf("request %v is refused: %s", d.Unit, d.Reason)
			}
			s.ended(d.Unit.Request)
		case Record:
			recorded = uint64(d.A)
		case Complete, Free, Wait, InstanceRetired:
		default:
			t.Fatalf("unexpected decision %v", d)
		}
	}
	if recorded != 0 {
		s.step(t, &Event{Kind: Recorded, Version: recorded})
	}
}

// ended tells what waits for a call that it has ended.
func (s *storm) ended(id infer.RequestID) {
	if r := s.running[s.calls[id].parent.Batch]; r != nil {
		delete(r.made, id)
	}
}

// proceed has a batch that can do something do it.
func (s *storm) proceed(t *rapid.T) {
	var able []infer.BatchID
	for _, id := range s.order {
		if r := s.running[id]; r != nil && (!r.begun || !s.heldUp(r) || r.free && s.doneUnit(r) >= 0) {
			able = append(able, id)
		}
	}
	if len(able) == 0 {
		if s.core.InFlight() > 0 {
			t.Fatalf("%d requests wait for each other", s.core.InFlight())
		}
		return
	}
	if rapid.IntRange(0, 9).Draw(t, "retires") == 0 {
		ref := rapid.SampledFrom(s.models).Draw(t, "of")
		if n := len(s.slots[ref]); n > 1 {
			s.step(t, &Event{Kind: Retire, Instance: s.slots[ref][n-1]})
			s.slots[ref] = s.slots[ref][:n-1]
		}
	}
	id := rapid.SampledFrom(able).Draw(t, "batch")
	switch r := s.running[id]; {
	case !r.begun:
		s.call(t, id, r)
	case r.free:
		s.endUnit(t, r)
	default:
		s.goOn(t, r)
	}
}

// heldUp reports whether a batch waits for calls, which keep its instance.
func (s *storm) heldUp(r *run) bool {
	for _, p := range r.made {
		if !p.Alone || !s.decoupled[r.batch.Model] || r.free {
			return true
		}
	}
	return false
}

// call has a batch make its calls.
func (s *storm) call(t *rapid.T, id infer.BatchID, r *run) {
	r.begun = true
	for range rapid.IntRange(0, 3).Draw(t, "calls") {
		if r.depth < 6 && s.left > 0 {
			s.left--
			unit := rapid.SampledFrom(r.units).Draw(t, "unit")
			s.submit(t, infer.Parent{Batch: id, Unit: unit.Unit(), Alone: rapid.Bool().Draw(t, "alone")}, r.depth+1)
		}
	}
}

// goOn ends a batch or, of a decoupled model, has its instance go on.
func (s *storm) goOn(t *rapid.T, r *run) {
	done := &infer.InstanceFree{Batch: r.batch.ID, Instance: r.batch.Instance, Credits: 1, Executions: 1, Outcomes: make([]infer.Outcome, len(r.units))}
	if r.free = s.decoupled[r.batch.Model] && (len(r.made) > 0 || rapid.Bool().Draw(t, "goes on")); r.free {
		for range r.units {
			done.Ends = append(done.Ends, infer.UnitMore)
		}
	} else {
		delete(s.running, r.batch.ID)
	}
	units := r.units
	s.step(t, &Event{Kind: InstanceFree, Ended: done})
	if !r.free {
		for _, u := range units {
			s.ended(u.Request)
		}
	}
}

// doneUnit is the index of a unit that waits for no call; less than 0 if there is
// none.
func (s *storm) doneUnit(r *run) int {
	for i := range r.units {
		waits := false
		for _, p := range r.made {
			waits = waits || !p.Alone || p.Unit.Request == r.units[i].Request
		}
		if !waits {
			return i
		}
	}
	return -1
}

// endUnit ends a unit of a batch that is off its instance.
func (s *storm) endUnit(t *rapid.T, r *run) {
	i := s.doneUnit(r)
	w := r.units[i]
	done := &infer.UnitDone{Batch: r.batch.ID, Instance: r.batch.Instance, Work: w}
	r.units = append(r.units[:i:i], r.units[i+1:]...)
	if len(r.units) == 0 {
		delete(s.running, r.batch.ID)
	}
	s.step(t, &Event{Kind: UnitDone, Done: done})
	s.ended(w.Request)
}
