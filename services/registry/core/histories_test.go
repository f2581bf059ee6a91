package core_test

import (
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/state"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core"
	"github.com/nereid-serving/nereid/services/registry/core/publish"
)

// TestLeadersKeepTheirPromises has the contents of three models change, load, fail and be
// removed, callers load and unload them while scans go on, workers with little memory join,
// leave and die, a gateway learn of everything late, the store be away, and leaders die
// between any two writes, so that the next one knows what the store holds and nothing else,
// while the deposed one goes on for a while. What serves goes on serving until its successor
// is ready; no worker is assigned more than its memory; every update ends and every call is
// answered, once nothing more happens.
func TestLeadersKeepTheirPromises(t *testing.T) {
	histories := 60
	if n, err := strconv.Atoi(os.Getenv("NEREID_HISTORIES")); err == nil {
		histories = n
	}
	swapped, rolledBack, deaths, answered := 0, 0, 0, 0
	for seed := range uint64(histories) {
		w := newWorld(seed, lies{})
		if err := w.run(); err != nil {
			t.Fatalf("history of seed %d: %v", seed, err)
		}
		swapped, rolledBack, deaths, answered = swapped+w.swapped, rolledBack+w.rolledBack, deaths+w.deaths, answered+w.answered
	}
	t.Logf("%d histories: %d updates were swapped, %d rolled back, %d leaders died, %d calls were answered", histories, swapped, rolledBack, deaths, answered)
	if swapped < histories || rolledBack < histories/4 || deaths < histories || answered < histories {
		t.Error("too few of them")
	}
}

// Each rule without effect, the histories find what it prevents.
func TestHistoriesFindWhatTheRulesPrevent(t *testing.T) {
	for name, c := range map[string]struct {
		lies lies
		text string
		from uint64 // the history at which to begin, where it takes many
	}{
		"a successor is ready first":                  {lies{ready: true}, "serves no longer", 0},
		"gateways know before what was replaced goes": {lies{applied: true}, "serves no longer", 0},
		"workers have little memory":                  {lies{roomy: true}, "has memory for", 0},
		"what is given up is written first":           {lies{unordered: true}, "has memory for", 1310},
		"what has failed is rolled back":              {lies{healthy: true}, "has not ended", 0},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := c.from; seed < c.from+1000; seed++ {
				if err := newWorld(seed, c.lies).run(); err != nil && strings.Contains(err.Error(), c.text) {
					t.Logf("history %d: %v", seed, err)
					return
				}
			}
			t.Fatalf("nothing %s in 1000 histories: they do not test the rule", c.text)
		})
	}
}

// run lets things happen, and then nothing more.
func (w *world) run() error {
	events := []func(){
		w.load, w.load, w.load, w.load, w.learn, w.learn, w.change, w.change, w.remove, w.call, w.call, w.join, w.leave, w.die, w.mortal, w.outage, w.wait, w.wait,
	}
	for range 600 {
		if w.IntN(4) > 0 {
			w.lead()
		} else {
			events[w.IntN(len(events))]()
		}
		if w.check(); w.err != nil {
			return w.err
		}
	}
	w.writable, w.away, w.deposed = -1, false, nil
	w.join()
	w.join()
	for range 4000 {
		switch w.IntN(8) {
		case 0:
			w.load()
		case 1:
			w.learn()
		case 2:
			w.now = w.now.Add(time.Second)
		default:
			w.lead()
		}
		if w.check(); w.err != nil {
			return w.err
		}
	}
	w.checkEnd()
	return w.err
}

// check holds the present state against the promises.
func (w *world) check() {
	for _, id := range slices.Sorted(maps.Keys(w.workers)) {
		used := uint64(0)
		for _, part := range w.parts(id) {
			for _, v := range part.GetVersions() {
				if c := w.contents[state.RefOf(v.GetModel())]; c != nil {
					used += c.bytes
				}
			}
		}
		if budget := w.workers[id].value.GetMemoryBudgetBytes(); used > budget {
			w.fail("worker %s has memory for %d bytes, and is assigned %d", id, budget, used)
		}
	}
	for _, key := range names() {
		serves := w.serves(key)
		if w.serving[key] && !serves && !w.excused[key] && !w.leaves(key) {
			w.fail("model %s serves no longer: %v", key, w.applied[key])
		}
		// It serves from when the gateway sends requests to what the store names.
		w.serving[key] = serves && (w.serving[key] || w.known == w.revision[core.Models])
	}
}

// leaves reports whether a worker that is about to stop has what the gateway sends a model's
// requests to: it is not held up where nobody else has the memory.
func (w *world) leaves(key string) bool {
	for _, l := range w.workers {
		for ref := range l.loaded {
			if l.value.GetLeaving() && ref.Name == key && publish.Contains(w.applied[key], ref) {
				return true
			}
		}
	}
	return false
}

// serves reports whether a worker is ready for what the gateway sends requests of a model to,
// and is to stay so.
func (w *world) serves(key string) bool {
	value := w.applied[key]
	for _, v := range publish.Serving(value, publish.Observed{}).GetVersions() {
		ref := publish.IDOf(value).Version(v.GetVersion(), v.GetGeneration())
		for id, l := range w.workers {
			if l.loaded[ref].GetState() == ready && w.isAssigned(id, ref) {
				return true
			}
		}
	}
	return false
}

func (w *world) isAssigned(id string, ref infer.ModelRef) bool {
	return slices.ContainsFunc(w.parts(id)[ref.Name].GetVersions(), func(a *nereidv1.AssignedVersion) bool { return state.RefOf(a.GetModel()) == ref })
}

// checkEnd checks what must hold once nothing has happened for long.
func (w *world) checkEnd() {
	for k, s := range w.store[core.Models] {
		if s.value.(*nereidv1.ModelValue).GetPrevious() != nil {
			w.fail("the update of model %s has not ended: %v", k.Name, s.value)
		}
	}
	if len(w.waiting) > 0 {
		w.fail("calls are not answered: %v", w.waiting)
	}
	for _, name := range names() {
		c := w.files[name]
		if c == nil || c.bad || w.explicit {
			continue
		}
		value, _ := w.store[core.Models][core.Key{Name: name}].value.(*nereidv1.ModelValue)
		if v := value.GetVersions(); len(v) == 0 || v[0].GetDigest() != c.digest && value.GetFailure() == "" {
			w.fail("model %s has not the content of the repository, %s: %v", name, c.digest, value)
		}
	}
}
