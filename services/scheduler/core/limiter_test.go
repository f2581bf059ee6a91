package core

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/resources"
)

// TestRateLimiterHistories feeds random histories to a core with a rate limiter, of
// models with and without sequences: what runs never needs more than there is, nothing
// is pipelined, and everything runs in the end.
func TestRateLimiterHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newLimited(t, rapid.IntRange(1, 4).Draw(t, "models"))
		t.Repeat(map[string]func(*rapid.T){
			"submit": func(t *rapid.T) {
				m := rapid.SampledFrom(w.models).Draw(t, "model")
				for range rapid.IntRange(1, 4).Draw(t, "requests") {
					w.submit(t, m)
				}
			},
			"complete": w.complete,
			"grant":    w.grant,
			"lose":     w.lose,
			"retire":   w.retire,
			"":         func(*rapid.T) { w.core.check() },
		})
		for _, m := range w.models {
			w.offer(t, 1, m, 0)
			for _, id := range slices.Sorted(maps.Keys(w.sequences[m])) { // or the backlog waits for ever
				w.send(t, m, infer.Sequence{ID: id, Start: !w.sequences[m][id], End: true})
			}
		}
		for len(w.running) > 0 {
			w.complete(t)
		}
		if n := w.core.InFlight(); n > 0 {
			t.Fatalf("%d requests never run", n)
		}
		w.core.check()
	})
}

// Two models share a device. However many requests wait for the one, those of the
// other get its turns, by the priorities.
func TestAFloodedModelDoesNotStarveAnother(t *testing.T) {
	for flooded := range 2 {
		for priority := uint32(1); priority <= 3; priority++ {
			w := &limited{core: New(Config{RateLimit: &RateLimit{}}), running: map[infer.BatchID]*Batch{}, needs: map[infer.ModelRef][]modelconfig.Resource{}}
			w.step(t, &Event{Kind: BecomeLeader})
			w.add(t, []modelconfig.Resource{{Name: "r", Count: 1}}, 1, nil)
			w.add(t, []modelconfig.Resource{{Name: "r", Count: 1}}, priority, nil)
			for i, m := range w.models {
				w.offer(t, 1, m, 0)
				requests := 10
				if i == flooded {
					requests = 1000
				}
				for range requests {
					w.submit(t, m)
				}
			}
			for len(w.running) > 0 && len(w.order) < 200 {
				w.completeBatch(t, slices.Collect(maps.Keys(w.running))[0]) // there is one
			}
			last, others := 0, 0
			for i, m := range w.order {
				if m == w.models[1-flooded] {
					last, others = i, others+1
				}
			}
			if others != 10 || last > 10*int(priority+1)+2 {
				t.Errorf("flooded %d, priority %d: %d of 10 requests had run after %d batches", flooded, priority, others, last)
			}
		}
	}
}

// limited is the outside of a core with a rate limiter.
type limited struct {
	core    *Core
	models  []infer.ModelRef
	needs   map[infer.ModelRef][]modelconfig.Resource
	running map[infer.BatchID]*Batch
	order   []infer.ModelRef // of the batches
	request uint64
	slots   uint32
	counts  map[string]uint32 // of resources; those that are not there have the default
	// sequences are the correlation IDs of the models with sequences; true are those
	// that go on.
	sequences map[infer.ModelRef]map[uint64]bool
}

// failer is a test.
type failer interface {
	Fatalf(format string, args ...any)
}

func newLimited(t *rapid.T, models int) *limited {
	w := &limited{running: map[infer.BatchID]*Batch{}, needs: map[infer.ModelRef][]modelconfig.Resource{}, counts: map[string]uint32{}, sequences: map[infer.ModelRef]map[uint64]bool{}}
	config := &RateLimit{}
	for _, name := range []string{"r", "s", "g"} {
		if rapid.Bool().Draw(t, "count of "+name) {
			w.counts[name] = rapid.Uint32Range(3, 5).Draw(t, "count")
			config.Counts = append(config.Counts, resources.Count{Name: name, Device: resources.EachDevice, Count: w.counts[name]})
		}
	}
	w.core = New(Config{RateLimit: config})
	w.step(t, &Event{Kind: BecomeLeader})
	for range models {
		var needs []modelconfig.Resource
		for _, name := range []string{"r", "s", "g"} {
			if n := rapid.Uint32Range(0, 3).Draw(t, "need of "+name); n > 0 {
				needs = append(needs, modelconfig.Resource{Name: name, Count: n, Global: name == "g"})
			}
		}
		var sequences *modelconfig.SequenceBatching
		if rapid.Bool().Draw(t, "sequences") {
			sequences = &modelconfig.SequenceBatching{Slots: rapid.IntRange(1, 3).Draw(t, "slots"), Oldest: rapid.Bool().Draw(t, "oldest")}
		}
		w.add(t, needs, rapid.Uint32Range(0, 3).Draw(t, "priority"), sequences)
		w.grant(t)
	}
	return w
}

// add makes a model known whose executions are known to be short. With sequences each
// of its requests is one of one of them.
func (w *limited) add(t failer, needs []modelconfig.Resource, priority uint32, sequences *modelconfig.SequenceBatching) {
	ref := infer.ModelRef{Name: fmt.Sprint("m", len(w.models)), Version: 1, Generation: 1}
	w.models = append(w.models, ref)
	w.needs[ref] = needs
	config := &modelconfig.Config{
		Groups:    []modelconfig.InstanceGroup{{Name: "other"}, {Name: ref.Name, Resources: needs, Priority: priority}},
		Sequences: sequences,
	}
	if sequences != nil {
		config.MaxBatchSize = int64(sequences.Slots)
		w.sequences[ref] = make(map[uint64]bool)
	}
	w.step(t, &Event{Kind: Configure, Model: &Model{Ref: ref, Config: config}})
	for range 9 {
		w.core.models[ref].costsOn("gpu:0").learn(1, shape{}, 20*time.Microsecond)
	}
}

func (w *limited) grant(t *rapid.T) {
	w.offer(t, rapid.Uint64Range(1, 2).Draw(t, "worker"), rapid.SampledFrom(w.models).Draw(t, "model"), rapid.IntRange(0, 1).Draw(t, "device"))
}

func (w *limited) offer(t failer, worker uint64, m infer.ModelRef, device int) {
	w.slots++
	id := infer.InstanceID{Worker: worker, Slot: w.slots}
	if one := w.core.workers[worker]; one == nil || !one.connected {
		w.step(t, &Event{Kind: WorkerConnected, Instance: id, Held: &infer.Held{}})
	}
	w.step(t, &Event{Kind: Granted, Grant: &infer.Grant{
		Instance: id, Model: m, Name: m.Name + "_7", Credits: 2, Pipelined: 1, Device: fmt.Sprint("gpu:", device),
	}})
}

func (w *limited) submit(t failer, m infer.ModelRef) {
	var place infer.Sequence
	if live := w.sequences[m]; live != nil { // four IDs, and an END with every third request
		place.ID = 1 + w.request%4
		place.Start, place.End = !live[place.ID], w.request%3 == 0
		live[place.ID] = !place.End
	}
	w.send(t, m, place)
}

func (w *limited) send(t failer, m infer.ModelRef, place infer.Sequence) {
	w.request++
	work := infer.Work{Request: infer.RequestID{Origin: 1, Number: w.request}, Attempt: 1}
	w.step(t, &Event{Kind: Submit, Item: &Item{Request: &infer.Request{Work: work, BatchSize: 1, Sequence: place}, Work: work, Model: m, BatchSize: 1, Enqueued: mono.Time(time.Second)}})
}

func (w *limited) complete(t *rapid.T) {
	if len(w.running) > 0 {
		ids := slices.SortedFunc(maps.Keys(w.running), func(a, b infer.BatchID) int { return int(a.Number) - int(b.Number) })
		w.completeBatch(t, rapid.SampledFrom(ids).Draw(t, "batch"))
	}
}

func (w *limited) completeBatch(t failer, id infer.BatchID) {
	b := w.running[id]
	delete(w.running, id)
	w.step(t, &Event{Kind: InstanceFree, Ended: &infer.InstanceFree{Batch: id, Instance: b.Instance, Credits: 1}})
}

func (w *limited) lose(t *rapid.T) {
	worker := rapid.Uint64Range(1, 2).Draw(t, "worker")
	maps.DeleteFunc(w.running, func(_ infer.BatchID, b *Batch) bool { return b.Instance.Worker == worker })
	w.step(t, &Event{Kind: WorkerLost, Instance: infer.InstanceID{Worker: worker}})
}

func (w *limited) retire(t *rapid.T) {
	id := infer.InstanceID{Worker: rapid.Uint64Range(1, 2).Draw(t, "worker"), Slot: rapid.Uint32Range(1, w.slots).Draw(t, "slot")}
	w.step(t, &Event{Kind: Retire, Instance: id})
}

func (w *limited) step(t failer, e *Event) {
	stored := uint64(0)
	for _, d := range slices.Clone(w.core.Step(mono.Time(time.Second), e)) {
		switch d.Kind {
		case Record:
			stored = uint64(d.A)
		case Dispatch:
			w.dispatched(t, d.Members())
		}
	}
	if stored != 0 {
		w.step(t, &Event{Kind: Recorded, Version: stored})
	}
}

// dispatched adds up what runs.
func (w *limited) dispatched(t failer, b *Batch) {
	w.order = append(w.order, b.Model)
	w.running[b.ID] = b
	if in := w.core.instances[b.Instance]; in.running > 1 {
		t.Fatalf("batch %v was pipelined", b.ID)
	}
	used, count := map[resourceKey]uint32{}, map[resourceKey]uint32{}
	key := func(r modelconfig.Resource, in *instance) resourceKey {
		if r.Global {
			return resourceKey{name: r.Name}
		}
		return resourceKey{r.Name, in.id.Worker, in.number}
	}
	for _, in := range w.core.instances {
		for _, r := range w.needs[in.model.ref] {
			count[key(r, in)] = max(count[key(r, in)], r.Count)
			if n, ok := w.counts[r.Name]; ok {
				count[key(r, in)] = n
			}
		}
	}
	for _, other := range w.running {
		for _, r := range w.needs[other.Model] {
			used[key(r, w.core.instances[other.Instance])] += r.Count
		}
	}
	// What a lost instance needed most of may be in use beyond what is there without it:
	// until that has ended nothing else takes of it.
	for _, r := range w.needs[b.Model] {
		if k := key(r, w.core.instances[b.Instance]); used[k] > count[k] {
			t.Fatalf("with batch %v, %d of %+v are in use, and there are %d", b.ID, used[k], k, count[k])
		}
	}
}
