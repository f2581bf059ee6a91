package rollout_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/state"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core/place"
	"github.com/nereid-serving/nereid/services/registry/core/publish"
	"github.com/nereid-serving/nereid/services/registry/core/rollout"
)

// fleetRules are what is different from a registry as it is.
type fleetRules struct {
	hasty     bool // what serves is replaced before its successor is ready
	undrained bool // what was replaced is taken away before gateways know
	crowded   bool // workers are taken to have memory for everything
	unordered bool // what is added to a worker is written before what it gives up
	stubborn  bool // what has failed is waited for
}

// TestLeadersKeepTheirPromises has the contents of three models change, load, fail and be
// removed, workers with little memory join, leave and die, a gateway that learns of
// everything late, and leaders that die between any two writes, so that the next one
// knows what the buckets hold and nothing else. What serves goes on serving until its
// successor is ready; no worker is assigned more than its memory; and every update ends,
// once nothing more happens.
func TestLeadersKeepTheirPromises(t *testing.T) {
	histories := 60
	if n, err := strconv.Atoi(os.Getenv("NEREID_HISTORIES")); err == nil {
		histories = n
	}
	swapped, rolledBack, deaths := 0, 0, 0
	for seed := range uint64(histories) {
		f := newFleet(seed, fleetRules{})
		if err := f.run(); err != nil {
			t.Fatalf("history of seed %d: %v", seed, err)
		}
		swapped, rolledBack, deaths = swapped+f.swapped, rolledBack+f.rolledBack, deaths+f.deaths
	}
	if swapped < histories || rolledBack < histories/2 || deaths < histories {
		t.Errorf("in %d histories %d updates were swapped, %d rolled back, and %d leaders died: too few", histories, swapped, rolledBack, deaths)
	}
}

// Each rule taken out, the histories find what it prevents.
func TestHistoriesOfLeadersFindWhatTheRulesPrevent(t *testing.T) {
	for name, c := range map[string]struct {
		rules fleetRules
		text  string
	}{
		"a successor is ready first":                  {fleetRules{hasty: true}, "serves no longer"},
		"gateways know before what was replaced goes": {fleetRules{undrained: true}, "serves no longer"},
		"workers have little memory":                  {fleetRules{crowded: true}, "has memory for"},
		"what is given up is written first":           {fleetRules{unordered: true}, "has memory for"},
		"what has failed is rolled back":              {fleetRules{stubborn: true}, "has not ended"},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(1000) {
				if err := newFleet(seed, c.rules).run(); err != nil && strings.Contains(err.Error(), c.text) {
					t.Logf("history %d: %v", seed+1, err)
					return
				}
			}
			t.Fatalf("nothing %s in 1000 histories: they do not test the rule", c.text)
		})
	}
}

// fleet is the buckets, the repository, the workers and a gateway of one history.
type fleet struct {
	*rand.Rand
	rules    fleetRules
	now      time.Time
	revision uint64 // of the bucket models
	models   publish.Models
	files    map[string]*content         // by the model's name
	contents map[infer.ModelRef]*content // of each generation
	assigned map[string]map[string]*nereidv1.AssignmentValue
	workers  map[string]*loader
	born     int // workers so far

	// applied is what the gateway knows of the models, as of a revision, and serving
	// whether it had somebody to send a model's requests to.
	applied publish.Models
	known   uint64
	serving map[string]bool
	// excused are models that were removed, or lost a worker that was to serve them next,
	// of which the gateway has not heard.
	excused  map[string]bool
	leader   *leader
	writable int // writes until the leader dies; negative is for good

	swapped, rolledBack, deaths int
	err                         error
}

// content is what the repository has of a model.
type content struct {
	digest string
	bytes  int64
	bad    bool // it never loads
}

// loader is a worker. It loads what it is assigned, one step later or many.
type loader struct {
	budget  int64
	leaving bool
	loaded  map[infer.ModelRef]*nereidv1.WorkerVersion
}

// leader is what a leader knows beside the buckets.
type leader struct {
	draining map[infer.ModelRef]drained
	rejected *rollout.Rejections
}

// drained is what was replaced, and at which revision.
type drained struct {
	version  place.Version
	revision uint64
}

func newFleet(seed uint64, rules fleetRules) *fleet {
	f := &fleet{
		Rand: rand.New(rand.NewPCG(seed, 11)), rules: rules, now: time.Unix(1e9, 0),
		models: make(publish.Models), files: make(map[string]*content), contents: make(map[infer.ModelRef]*content), assigned: make(map[string]map[string]*nereidv1.AssignmentValue),
		workers: make(map[string]*loader), serving: make(map[string]bool), excused: make(map[string]bool), writable: -1,
	}
	f.elect()
	for range 3 {
		f.join()
	}
	return f
}

// run lets things happen, and then nothing more.
func (f *fleet) run() error {
	events := []func(){
		f.lead, f.lead, f.lead, f.lead, f.load, f.load, f.load, f.load, f.learn, f.learn, f.change, f.change, f.remove, f.join, f.leave, f.die, f.mortal, f.wait,
	}
	for range 150 {
		events[f.IntN(len(events))]()
		if f.watch(); f.err != nil {
			return f.err
		}
	}
	f.writable = -1
	f.join()
	f.join()
	for range 60 {
		f.lead()
		f.load()
		f.learn()
		if f.watch(); f.err != nil {
			return f.err
		}
	}
	for key, m := range f.models {
		if m.Value.GetPrevious() != nil {
			f.fail("the update of model %s has not ended: %v", key, m.Value)
		}
	}
	return f.err
}

func (f *fleet) fail(format string, args ...any) {
	if f.err == nil {
		f.err = fmt.Errorf(format, args...)
	}
}

// watch holds what is against the promises.
func (f *fleet) watch() {
	for _, id := range slices.Sorted(maps.Keys(f.workers)) {
		used := int64(0)
		for _, part := range f.assigned[id] {
			for _, v := range part.GetVersions() {
				used += f.bytesOf(state.RefOf(v.GetModel()))
			}
		}
		if budget := f.workers[id].budget; used > budget {
			f.fail("worker %s has memory for %d bytes, and is assigned %d", id, budget, used)
		}
	}
	for _, key := range names() {
		serves := f.serves(key)
		if f.serving[key] && !serves {
			f.fail("model %s serves no longer: %v", key, f.applied[key].Value)
		}
		f.serving[key] = serves
	}
}

// serves reports whether a worker is ready for what the gateway sends requests of a
// model to, and is to stay so.
func (f *fleet) serves(key string) bool {
	value := f.applied[key].Value
	for _, v := range publish.Serving(value, publish.Observed{}).GetVersions() {
		ref := publish.IDOf(value).Version(v.GetVersion(), v.GetGeneration())
		for id, w := range f.workers {
			if w.loaded[ref].GetState() == ready && f.isAssigned(id, ref) {
				return true
			}
		}
	}
	return false
}

// change puts another content into the repository.
func (f *fleet) change() {
	f.files[f.name()] = &content{digest: fmt.Sprintf("d%d", f.Uint64()), bytes: 1 + f.Int64N(4), bad: f.IntN(4) == 0}
}

// remove takes a model out of the repository: it need not serve.
func (f *fleet) remove() {
	if name := f.name(); f.IntN(4) == 0 {
		delete(f.files, name)
	}
}

func (f *fleet) name() string { return names()[f.IntN(3)] }

// names are those of the models.
func names() []string { return []string{"k", "l", "m"} }

func (f *fleet) wait() { f.now = f.now.Add(time.Duration(f.IntN(30)) * time.Second) }

// mortal has the leader die between two writes that come.
func (f *fleet) mortal() { f.writable = f.IntN(4) }

func (f *fleet) join() {
	if len(f.workers) < 4 {
		f.born++
		f.workers[fmt.Sprint("w", f.born)] = &loader{
			budget: 6 + f.Int64N(6), loaded: make(map[infer.ModelRef]*nereidv1.WorkerVersion),
		}
	}
}

// leave has a worker stop once nothing is assigned to it.
func (f *fleet) leave() {
	staying := 0
	for _, w := range f.workers {
		if !w.leaving {
			staying++
		}
	}
	if staying > 2 {
		f.workers[f.worker()].leaving = true
	}
}

// die ends a worker with all that it has.
func (f *fleet) die() {
	if len(f.workers) > 1 && f.IntN(2) == 0 {
		f.end(f.worker())
	}
}

func (f *fleet) worker() string {
	ids := slices.Sorted(maps.Keys(f.workers))
	return ids[f.IntN(len(ids))]
}

func (f *fleet) end(id string) {
	for ref := range f.workers[id].loaded {
		f.excused[ref.Name] = true
	}
	delete(f.workers, id)
	delete(f.assigned, id)
	for key := range f.serving {
		f.serving[key] = f.serving[key] && f.serves(key)
	}
}

// learn has the gateway apply what the bucket holds.
func (f *fleet) learn() {
	f.applied, f.known = maps.Clone(f.models), f.revision
	for key := range f.excused {
		f.serving[key] = false
	}
	clear(f.excused)
}

// load has each worker come closer to what it is assigned.
func (f *fleet) load() {
	for _, id := range slices.Sorted(maps.Keys(f.workers)) {
		w := f.workers[id]
		wanted := make(map[infer.ModelRef]*nereidv1.AssignedVersion)
		for _, part := range f.assigned[id] {
			for _, v := range part.GetVersions() {
				wanted[state.RefOf(v.GetModel())] = v
			}
		}
		for ref := range w.loaded {
			if wanted[ref] == nil {
				delete(w.loaded, ref)
			}
		}
		for _, ref := range slices.SortedFunc(maps.Keys(wanted), infer.ModelRef.Compare) {
			f.loadOne(w, ref, wanted[ref])
		}
		if w.leaving && len(wanted) == 0 {
			f.end(id)
		}
	}
}

func (f *fleet) loadOne(w *loader, ref infer.ModelRef, v *nereidv1.AssignedVersion) {
	has := w.loaded[ref]
	switch {
	case has == nil:
		w.loaded[ref] = &nereidv1.WorkerVersion{Model: v.GetModel(), State: loading, Groups: v.GetGroups()}
	case has.GetState() != loading || f.IntN(2) == 0:
	case f.contents[ref].bad:
		w.loaded[ref] = &nereidv1.WorkerVersion{Model: v.GetModel(), State: unavailable, Cause: "bad", Reason: string(errs.LoadFailed)}
	case f.IntN(8) == 0:
		w.loaded[ref] = &nereidv1.WorkerVersion{Model: v.GetModel(), State: unavailable, Cause: "full", Reason: string(errs.CacheFull)}
	default:
		w.loaded[ref] = &nereidv1.WorkerVersion{Model: v.GetModel(), State: ready, Groups: v.GetGroups()}
	}
}
