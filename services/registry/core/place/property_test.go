package place_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/services/registry/core/place"
)

// history is a fleet in which things happen, and what was placed last.
type history struct {
	workers  map[string]place.Worker
	versions map[infer.ModelRef]place.Version
	last     place.Placement
}

// happen draws something that happens before the next placement.
func (h *history) happen(t *rapid.T) {
	id := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "worker")
	name := rapid.SampledFrom([]string{"k", "l", "m"}).Draw(t, "model")
	v := version(name, 1, group(cpu, 1))
	if rapid.Bool().Draw(t, "any device") {
		v.Groups = append(v.Groups, group(auto, 1))
	}
	w, there := h.workers[id]
	switch rapid.SampledFrom([]string{"join", "join", "gone", "back", "unwell", "leave", "vanish", "model", "model", "remove", "ready", "ready", "ready"}).Draw(t, "event") {
	case "join":
		if !there {
			h.workers[id] = place.Worker{ID: id, Kind: rapid.SampledFrom([]modelconfig.DeviceKind{cpu, cpu, gpu}).Draw(t, "kind"), Budget: rapid.SampledFrom([]int64{0, 4, 8}).Draw(t, "budget")}
		}
	case "gone", "back":
		if there {
			w.Lost = !w.Lost
			h.workers[id] = w
		}
	case "unwell":
		if there {
			w.Unwell = !w.Unwell
			h.workers[id] = w
		}
	case "leave":
		if there {
			w.Leaving = true
			h.workers[id] = w
		}
	case "vanish":
		delete(h.workers, id)
		for ref, v := range h.versions {
			delete(v.AssignedTo, id)
			h.versions[ref] = v
		}
	case "model":
		if _, known := h.versions[v.Model]; !known {
			v.Rules.Replicas = rapid.IntRange(0, 3).Draw(t, "replicas")
			v.Rules.Pack = rapid.Bool().Draw(t, "pack")
			v.Bytes = rapid.Int64Range(0, 5).Draw(t, "bytes")
			h.versions[v.Model] = v
		}
	case "remove":
		delete(h.versions, v.Model)
	case "ready":
		if at := h.versions[v.Model].AssignedTo; len(at) > 0 {
			at[rapid.SampledFrom(slices.Sorted(maps.Keys(at))).Draw(t, "where")] = true
		}
	}
}

// place places all, and notes where versions are from then on.
func (h *history) place() (before map[infer.ModelRef]map[string]bool) {
	before = make(map[infer.ModelRef]map[string]bool)
	for ref, v := range h.versions {
		before[ref] = maps.Clone(v.AssignedTo)
	}
	h.last = place.Assign(slices.Collect(maps.Values(h.versions)), slices.Collect(maps.Values(h.workers)))
	for ref, v := range h.versions {
		at := make(map[string]bool)
		for id := range h.workers {
			if h.has(id, ref) || h.workers[id].Lost && present(before[ref], id) { // which nobody tells
				at[id] = before[ref][id]
			}
		}
		v.AssignedTo = at
		h.versions[ref] = v
	}
	return before
}

func present(at map[string]bool, id string) bool { _, there := at[id]; return there }

func (h *history) has(id string, ref infer.ModelRef) bool {
	return slices.ContainsFunc(h.last.Workers[id], func(a place.Assigned) bool { return a.Model == ref })
}

func TestPlacementHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &history{workers: make(map[string]place.Worker), versions: make(map[infer.ModelRef]place.Version)}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			h.happen(t)
			h.sameInAnyOrder(t)
			h.settle(t)
			h.staysAsItIs(t)
		}
	})
}

// settle places until nothing leaves a worker any more, which makes room there
// for the next placement.
func (h *history) settle(t *rapid.T) {
	for range 10 {
		before := h.place()
		h.withinBudgets(t, before)
		h.neverWithoutAnInstance(t, before)
		h.movesLittle(t, before)
		if !h.left(before) {
			return
		}
	}
	t.Fatal("what is placed does not come to rest")
}

// left reports whether a version is not any more where it was before.
func (h *history) left(before map[infer.ModelRef]map[string]bool) bool {
	for ref, at := range before {
		for id := range at {
			if !present(h.versions[ref].AssignedTo, id) {
				return true
			}
		}
	}
	return false
}

func (h *history) sameInAnyOrder(t *rapid.T) {
	versions, workers := slices.Collect(maps.Values(h.versions)), slices.Collect(maps.Values(h.workers))
	first := place.Assign(versions, workers)
	rand.Shuffle(len(versions), func(i, j int) { versions[i], versions[j] = versions[j], versions[i] })
	rand.Shuffle(len(workers), func(i, j int) { workers[i], workers[j] = workers[j], workers[i] })
	if diff := cmp.Diff(first, place.Assign(versions, workers)); diff != "" {
		t.Fatalf("another order gives another placement: %s", diff)
	}
}

// withinBudgets checks that nothing comes to a worker whose budget it exceeds.
func (h *history) withinBudgets(t *rapid.T, before map[infer.ModelRef]map[string]bool) {
	for id, w := range h.workers {
		var used int64
		came := false
		for ref, v := range h.versions {
			if present(v.AssignedTo, id) || present(before[ref], id) { // also what it is only told to give up
				used += v.Bytes * int64(instances(v, w))
			}
			came = came || present(v.AssignedTo, id) && !present(before[ref], id) && v.Bytes > 0
		}
		if came && w.Budget > 0 && used > w.Budget {
			t.Fatalf("%d bytes are on %s, which has %d", used, id, w.Budget)
		}
	}
}

func instances(v place.Version, w place.Worker) (n int) {
	for _, g := range v.Groups {
		if g.Kind == auto || g.Kind == w.Kind {
			n += g.Count
		}
	}
	return n
}

// neverWithoutAnInstance checks that a version which was ready somewhere still
// is, unless that place goes and there is no other.
func (h *history) neverWithoutAnInstance(t *rapid.T, before map[infer.ModelRef]map[string]bool) {
	for ref, v := range h.versions {
		was, is, other := "", "", false
		for id, ready := range before[ref] {
			if ready && !h.workers[id].Lost {
				was = id
			}
		}
		for id, ready := range v.AssignedTo {
			if ready && !h.workers[id].Lost {
				is = id
			}
			other = other || !h.workers[id].Lost
		}
		if was != "" && is == "" && (other || !h.workers[was].Leaving) {
			t.Fatalf("%v was ready on %s and is on %v, ready nowhere", ref, was, v.AssignedTo)
		}
	}
}

// movesLittle checks that a version comes to no more workers than it lacks.
func (h *history) movesLittle(t *rapid.T, before map[infer.ModelRef]map[string]bool) {
	for ref, v := range h.versions {
		if v.Rules.Replicas == 0 {
			continue
		}
		kept, came := 0, 0
		for id := range v.AssignedTo {
			switch w := h.workers[id]; {
			case !present(before[ref], id):
				came++
			case !w.Leaving && !w.Unwell && !w.Lost && (w.Kind != cpu || !onlyAuto(v)):
				kept++
			}
		}
		if came > max(v.Rules.Replicas-kept, 0) {
			t.Fatalf("%v asks for %d, has %d and comes to %d more: %v after %v", ref, v.Rules.Replicas, kept, came, v.AssignedTo, before[ref])
		}
	}
}

func onlyAuto(v place.Version) bool {
	return !slices.ContainsFunc(v.Groups, func(g modelconfig.InstanceGroup) bool { return g.Kind == cpu })
}

// staysAsItIs checks that nothing changes when nothing has.
func (h *history) staysAsItIs(t *rapid.T) {
	again := place.Assign(slices.Collect(maps.Values(h.versions)), slices.Collect(maps.Values(h.workers)))
	for id := range h.workers {
		if diff := cmp.Diff(h.last.Workers[id], again.Workers[id]); diff != "" && !h.workers[id].Lost {
			t.Fatalf("%s changes by itself: %s", id, fmt.Sprint(diff))
		}
	}
}
