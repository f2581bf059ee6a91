package reconcile

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestNothingIsDoneBeforeAllIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.stop()
		w.loop.Change(t.Context(), func(d *Desired) { d.ModelsKnown(1) })
		w.loop.Change(t.Context(), func(d *Desired) { assign(d, Assignment{Versions: []Assigned{{Ref: ref("a", 1, 1)}}}) })
		w.expect()
	})
}

func TestNewGenerationServesBeforeTheOldOneGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.stop()
		w.desire(1, ref("a", 1, 1))
		w.expect("load a/1@1", "open a_0", "loaded a/1@1 true")
		w.desire(2, ref("a", 1, 2))
		w.expect("load a/1@2", "open a_0", "loaded a/1@2 true")
		if got, want := w.states(), "a/1@1 READY, a/1@2 READY"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if w.applied() != 1 {
			t.Errorf("revision %d is applied while the old generation lingers", w.applied())
		}
		pass(linger)
		w.expect("close 1", "closed a/1@1")
		if got, want := w.states(), "a/1@2 READY"; got != want || w.applied() != 2 {
			t.Errorf("%s at revision %d, want %s at 2", got, w.applied(), want)
		}
	})
}

func TestFailedGenerationLeavesTheOldOneServing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.stop()
		w.load = func(_ context.Context, r infer.ModelRef) error {
			switch r.Generation {
			case 2:
				return errors.New("no such file")
			case 3:
				panic("boom")
			}
			return nil
		}
		w.desire(1, ref("a", 1, 1))
		w.desire(2, ref("a", 1, 2))
		if got, want := w.states(), "a/1@1 READY, a/1@2 UNAVAILABLE no such file"; got != want || w.applied() != 2 {
			t.Errorf("%s at revision %d, want %s at 2", got, w.applied(), want)
		}
		w.desire(3, ref("a", 1, 3))
		want := "a/1@1 READY, a/1@3 UNAVAILABLE the backend panicked while it loaded model 'a'; the log has the stack"
		if got := w.states(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		w.desire(4, ref("a", 1, 4))
		pass(linger)
		if got, want := w.states(), "a/1@4 READY"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}

func TestLoadsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.stop()
		w.load = func(context.Context, infer.ModelRef) error {
			pass(time.Second)
			return nil
		}
		w.desire(1, ref("a", 1, 1), ref("b", 1, 1), ref("c", 1, 1), ref("d", 1, 1))
		pass(3 * time.Second)
		if got, want := w.states(), "a/1@1 READY, b/1@1 READY, c/1@1 READY, d/1@1 READY"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if w.most != 2 {
			t.Errorf("%d loads at the same time, want 2", w.most)
		}
		w.most = 0 // other backends load beside what serves as before
		w.desire(2, ref("a", 1, 1), ref("e", 1, 1), ref("f", 1, 1), ref("g", 1, 1))
		pass(3 * time.Second)
		if got, want := w.states(), "a/1@1 READY, e/1@1 READY, f/1@1 READY, g/1@1 READY"; got != want || w.most != 2 {
			t.Errorf("%s with %d loads at the same time, want %s with 2", got, w.most, want)
		}
		w.desire(3)
		pass(3 * time.Second)
		w.most, w.backend = 0, backends.ONNXRuntime
		w.desire(4, ref("a", 1, 2), ref("b", 1, 2))
		pass(time.Second)
		if w.states(); w.most != 2 {
			t.Errorf("%d loads of an engine at the same time when nothing serves, want 2", w.most)
		}
		w.most = 0
		w.desire(5, ref("a", 1, 2), ref("e", 1, 2), ref("f", 1, 2))
		pass(3 * time.Second)
		if got, want := w.states(), "a/1@2 READY, e/1@2 READY, f/1@2 READY"; got != want || w.most != 1 {
			t.Errorf("%s with %d loads of an engine at the same time, want %s with 1", got, w.most, want)
		}
	})
}

// Three engine loads of which one goes on leave a slot for another backend.
func TestLoadsOfEnginesDoNotHoldUpOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.stop()
		w.desire(1, ref("a", 1, 1))
		w.load = func(_ context.Context, r infer.ModelRef) error {
			if r.Name != "z" {
				pass(time.Hour)
			}
			return nil
		}
		w.backend = backends.ONNXRuntime
		w.desire(2, ref("a", 1, 1), ref("b", 1, 1), ref("c", 1, 1), ref("d", 1, 1))
		w.backend = ""
		w.loop.Change(t.Context(), func(d *Desired) {
			z := ref("z", 1, 1)
			d.SetModel("z", []Version{{Ref: z, Serve: true, Config: &modelconfig.Config{Name: "z"}}}, 3)
			d.Assign(z.ID(), Assignment{Versions: []Assigned{{Ref: z, Groups: []Group{{Name: "z", Count: 1}}}}, Revision: 3, ModelsRevision: 3})
		})
		want := "a/1@1 READY, b/1@1 LOADING, c/1@1 LOADING, d/1@1 LOADING, z/1@1 READY"
		if got := w.states(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		pass(4 * time.Hour)
	})
}

func TestSeparateInstancesAreMadeAtTheSameTime(t *testing.T) {
	for _, separate := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			defer w.stop()
			w.separate = separate
			w.instance = func(string) error {
				w.count(+1)
				pass(time.Second)
				w.count(-1)
				return nil
			}
			w.desireGroup(Group{Name: "a", Count: concurrentInstances + 1})
			pass(time.Hour)
			most := 1
			if separate {
				most = concurrentInstances
			}
			if got := w.states(); got != "a/1@1 READY" || w.most != most {
				t.Errorf("separate %v: %s with %d at the same time, want %d", separate, got, w.most, most)
			}
		})
	}
}

func TestSeparateInstanceThatFailsEndsTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.stop()
		w.separate = true
		w.instance = func(name string) error {
			if name == "a_3" {
				return errors.New("no room")
			}
			w.note("made %s", name)
			return nil
		}
		w.desireGroup(Group{Name: "a", Count: 4})
		if got, want := w.states(), "a/1@1 UNAVAILABLE instance a_3: no room"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		balance := make(map[string]int)
		for _, event := range w.events() {
			what, name, _ := strings.Cut(event, " ")
			balance[name] += map[string]int{"made": 1, "gone": -1}[what]
		}
		for name, n := range balance {
			if n != 0 {
				t.Errorf("%s was made and not closed", name)
			}
		}
	})
}

// A change of one model says nothing about the others.
func TestOnlyWhatChangedIsPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.stop()
		a, b := infer.ModelID{Name: "a"}, infer.ModelID{Name: "b"}
		w.desire(1, ref("a", 1, 1), ref("b", 1, 1))
		pass(linger)
		w.events()
		before := maps.Clone(w.told)
		w.desire(2, ref("a", 1, 1), ref("b", 1, 2))
		pass(linger)
		if w.events(); w.told[a] != before[a] || w.told[b] <= before[b] || w.applied() != 2 {
			t.Errorf("told %v after %v at revision %d", w.told, before, w.applied())
		}
	})
}

// An assignment may come before the models that it was made by, and the first
// of these be a change of another model.
func TestContentThatLeftIsNotWaitedForOnceTheModelsAreKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.stop()
		w.desire(1, ref("a", 1, 1))
		w.loop.Change(t.Context(), func(d *Desired) {
			assign(d, Assignment{Revision: 2, ModelsRevision: 5, Versions: []Assigned{{Ref: ref("gone", 1, 1)}}})
		})
		if w.applied() != 1 {
			t.Errorf("revision %d is applied before the models are known", w.applied())
		}
		w.loop.Change(t.Context(), func(d *Desired) { d.SetModel("other", nil, 5) })
		if w.applied() != 5 {
			t.Errorf("revision %d is applied, want 5", w.applied())
		}
	})
}

func TestAbandonedLoadMayBeWantedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.stop()
		slow := func(ctx context.Context, _ infer.ModelRef) error {
			<-ctx.Done()
			pass(time.Second)
			return ctx.Err()
		}
		w.load = slow
		w.desire(1, ref("a", 1, 1))
		w.desire(2)
		w.load = nil
		w.desire(3, ref("a", 1, 1))
		pass(time.Second)
		w.expect("load a/1@1", "load a/1@1", "open a_0", "loaded a/1@1 true")
	})
}

func TestFailedLoadIsRepeatedAsOftenAsItMayBe(t *testing.T) {
	ref := infer.ModelRef{Name: "a", Version: 1, Generation: 1}
	for _, tt := range []struct {
		name     string
		retries  int
		failures int // of the first attempts
		want     []string
	}{
		{"never", 0, 1, []string{"load a/1@1", "loaded a/1@1 false"}},
		{"once", 1, 1, []string{"load a/1@1", "retried a/1@1: busy", "load a/1@1", "open a_0", "loaded a/1@1 true"}},
		{"in vain", 2, 9, []string{"load a/1@1", "retried a/1@1: busy", "load a/1@1", "retried a/1@1: busy", "load a/1@1", "loaded a/1@1 false"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				defer w.stop()
				w.loop.config.Retries = tt.retries
				attempts := 0
				w.load = func(context.Context, infer.ModelRef) error {
					if attempts++; attempts <= tt.failures {
						return errors.New("busy")
					}
					return nil
				}
				w.desire(1, ref)
				w.expect(tt.want...)
			})
		})
	}
}

func TestResize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.stop()
		w.desire(1, ref("a", 1, 1))
		w.expect("load a/1@1", "open a_0", "loaded a/1@1 true")
		resize := func(groups ...Group) {
			w.loop.Change(t.Context(), func(d *Desired) {
				assign(d, Assignment{Versions: []Assigned{{Ref: ref("a", 1, 1), Groups: groups}}})
			})
		}
		resize(Group{Name: "a", Count: 2}, Group{Name: "b", Count: 1})
		w.expect("open a_1", "open b_0")
		resize(Group{Name: "b", Count: 1})
		closed := w.events()
		slices.Sort(closed)
		if diff := cmp.Diff([]string{"close 1", "close 2"}, closed); diff != "" {
			t.Error(diff)
		}
		resize(Group{Name: "c", Count: 5}) // c_3 cannot be made: what there is stays
		w.expect("gone c_0", "gone c_1", "gone c_2", "failed a/1@1: instance c_3: no room")
		if got, want := w.states(), "a/1@1 READY instance c_3: no room"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if diff := cmp.Diff([]Group{{Name: "c", Count: 5}}, w.groups()); diff != "" {
			t.Errorf("told of %s", diff)
		}
		resize(Group{Name: "b", Count: 2})
		w.expect("open b_1")
		if got, want := w.states(), "a/1@1 READY"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}

func TestMemoryIsMeasuredWithTheInstances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.stop()
		w.assignWarm(1, 1)
		taken := func() uint64 {
			synctest.Wait()
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.runs[infer.ModelID{Name: "a"}][0].Memory
		}
		if got := taken(); got != 100 {
			t.Errorf("one instance takes %d, want 100", got)
		}
		w.assignWarm(1, 2)
		if got := taken(); got != 200 {
			t.Errorf("two instances take %d, want 200", got)
		}
		w.assignWarm(1, 1)
		if got := taken(); got >= 200 || got < 100 {
			t.Errorf("one of two instances takes %d", got)
		}
	})
}

// A resize that nobody wants any more holds up neither the end of its version nor a
// later one.
func TestAbandonedResizeMayBeWantedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.stop()
		w.assignWarm(1, 1)
		w.events()
		resume := make(chan bool)
		w.run = func(b backend.Batch) {
			stop := make(chan bool)
			b.OnCancel(func() { close(stop) })
			<-stop
			<-resume
		}
		w.assignWarm(1, 2)
		w.desire(2)
		w.assignWarm(1, 2)
		w.expect("run a_1")
		resume <- true
		w.expect("gone a_1", "run a_1")
		w.desire(3)
		resume <- true
		w.expect("gone a_1", "close 1", "closed a/1@1")
	})
}

func TestInstancesThatAreAwayAreShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.stop()
		w.loop.Change(t.Context(), func(d *Desired) {
			d.SetModel("a", []Version{{Ref: ref("a", 1, 1), Serve: true, Config: &modelconfig.Config{}}}, 1)
			d.ModelsKnown(1)
			assign(d, Assignment{Versions: []Assigned{{Ref: ref("a", 1, 1), Groups: []Group{{Name: "a", Count: 2}, {Name: "p", Count: 1, Passive: true}}}}})
			d.AssignmentKnown()
		})
		for _, step := range []struct {
			slot  uint32
			cause error
			want  []string
		}{
			{1, errors.New("dead"), []string{"dead", "", ""}},
			{2, errors.New("dead, too"), []string{"dead", "dead, too", "dead"}},
			{1, nil, []string{"", "dead, too", ""}},
			{2, nil, []string{"", "", ""}},
		} {
			synctest.Wait()
			w.away[step.slot-1](infer.InstanceID{Slot: step.slot}, step.cause)
			synctest.Wait()
			w.mu.Lock()
			v := w.runs[infer.ModelID{Name: "a"}][0]
			w.mu.Unlock()
			for i, want := range step.want {
				ready := v.State == infer.Ready && v.InstanceState(i) == infer.Ready
				if got := v.Instances[i].Away; got != want || ready != (want == "") {
					t.Errorf("instance %d is away: %q, ready %t, want %q", i, got, ready, want)
				}
			}
		}
	})
}

// Nobody takes the instances of before for those that are being made.
func TestGroupsAreToldWhenTheirInstancesAreThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.stop()
		w.assignWarm(1, 1)
		if diff := cmp.Diff([]Group{{Name: "a", Count: 1}}, w.groups()); diff != "" {
			t.Error(diff)
		}
		w.run = func(b backend.Batch) {
			pass(time.Second)
			b.Respond(0, &infer.Response{Final: true})
		}
		w.assignWarm(1, 2)
		if got := w.groups(); got != nil {
			t.Errorf("told of %v while the warm-up runs", got)
		}
		pass(3 * time.Second)
		if diff := cmp.Diff([]Group{{Name: "a", Count: 2}}, w.groups()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestGroupsThatAreRefusedFailTheirContentAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.stop()
		w.desire(1, ref("a", 1, 1))
		w.loop.Change(t.Context(), func(d *Desired) {
			d.SetModel("b", []Version{{Ref: ref("b", 1, 1), Serve: true}}, 2)
			assign(d, Assignment{Versions: []Assigned{
				{Ref: ref("a", 1, 1), Groups: []Group{{Name: "a", Count: 9}}, Err: errors.New("too many")},
				{Ref: ref("b", 1, 1), Err: errors.New("too many")},
			}})
		})
		if got, want := w.states(), "a/1@1 READY too many, b/1@1 UNAVAILABLE too many"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}

func TestInstanceThatCannotBeMadeFailsTheContent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.stop()
		w.desire(1)
		w.loop.Change(t.Context(), func(d *Desired) {
			d.SetModel("a", []Version{{Ref: ref("a", 1, 1), Serve: true, Config: &modelconfig.Config{}}}, 2)
			assign(d, Assignment{Versions: []Assigned{{Ref: ref("a", 1, 1), Groups: []Group{{Name: "a", Count: 4}}}}})
		})
		w.expect("load a/1@1", "gone a_0", "gone a_1", "gone a_2", "closed a/1@1", "loaded a/1@1 false")
		if got, want := w.states(), "a/1@1 UNAVAILABLE instance a_3: no room"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}

// assignWarm wants so many instances of a model with a warm-up sample.
func (w *world) assignWarm(generation uint64, count int) {
	w.loop.Change(w.t.Context(), func(d *Desired) {
		warm := &modelconfig.Config{Warmup: []modelconfig.WarmupSample{{Name: "s", BatchSize: 1, Count: 2}}}
		d.SetModel("a", []Version{{Ref: ref("a", 1, generation), Serve: true, Config: warm}}, generation)
		d.ModelsKnown(generation)
		assign(d, Assignment{Versions: []Assigned{{Ref: ref("a", 1, generation), Groups: []Group{{Name: "a", Count: count}}}}})
		d.AssignmentKnown()
	})
	synctest.Wait()
}

func TestInstancesAreWarmBeforeAnyIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.stop()
		w.assignWarm(1, 2)
		w.expect("load a/1@1", "run a_0", "run a_0", "run a_1", "run a_1", "open a_0", "open a_1", "loaded a/1@1 true")
		w.assignWarm(1, 3)
		w.expect("run a_2", "run a_2", "open a_2")
	})
}

func TestFailedWarmupKeepsWhatServes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.stop()
		w.assignWarm(1, 1)
		w.events()
		w.run = func(b backend.Batch) { b.Respond(0, &infer.Response{Err: errors.New("sick")}) }
		w.assignWarm(2, 1)
		w.expect("load a/1@2", "run a_0", "gone a_0", "closed a/1@2", "loaded a/1@2 false")
		if got, want := w.states(), "a/1@1 READY, a/1@2 UNAVAILABLE failed to run warmup sample 's': sick;"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}

func TestPanicInWarmupFailsTheContentAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.stop()
		w.assignWarm(1, 1)
		w.run = func(backend.Batch) { panic("no such kernel") }
		w.assignWarm(1, 2) // by a resize
		if got, want := w.states(), "a/1@1 READY the backend panicked while it loaded model 'a'; the log has the stack"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		w.assignWarm(2, 1)
		if got := w.states(); !strings.Contains(got, "a/1@1 READY") || !strings.Contains(got, "a/1@2 UNAVAILABLE the backend panicked") {
			t.Errorf("%s, want the new version alone to fail", got)
		}
	})
}

func TestPanicAfterTheLoadClosesWhatWasMade(t *testing.T) {
	for name, tt := range map[string]struct {
		broken func(*world)
		want   []string
	}{
		"in an instance": {
			func(w *world) {
				w.instance = func(name string) error {
					if name == "a_1" {
						panic("no such kernel")
					}
					return nil
				}
			},
			[]string{"load a/1@1", "run a_0", "run a_0", "gone a_0", "closed a/1@1", "loaded a/1@1 false"},
		},
		"in a warm-up": {
			func(w *world) { w.run = func(backend.Batch) { panic("no such kernel") } },
			[]string{"load a/1@1", "run a_0", "gone a_0", "closed a/1@1", "loaded a/1@1 false"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				defer w.stop()
				tt.broken(w)
				w.assignWarm(1, 2)
				w.expect(tt.want...)
			})
		})
	}
}

func TestPanicInAFurtherInstanceClosesItsLikesAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.stop()
		w.assignWarm(1, 1)
		w.events()
		w.run = func(backend.Batch) { panic("no such kernel") }
		w.assignWarm(1, 2)
		got := w.events()
		if diff := cmp.Diff([]string{"run a_1", "gone a_1"}, got[:min(2, len(got))]); diff != "" {
			t.Error(diff)
		}
		if got, want := w.states(), "a/1@1 READY the backend panicked while it loaded model 'a'; the log has the stack"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}

// A backend that does not heed its context holds up the stop for a while only.
func TestLoadThatDoesNotEndIsLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		release := make(chan bool)
		w.load = func(_ context.Context, r infer.ModelRef) error {
			if r.Name == "b" {
				<-release
			}
			return nil
		}
		w.desire(1, ref("a", 1, 1), ref("b", 1, 1))
		w.events()
		start := time.Now()
		w.stuck = true // its files are open until the process ends
		w.stop()
		if took := time.Since(start); took != time.Minute+LastWait {
			t.Errorf("the stop took %v, want the drain's minute and %v", took, LastWait)
		}
		if diff := cmp.Diff([]infer.ModelID{{Name: "b"}}, w.busy); diff != "" {
			t.Errorf("models left behind (-want +got):\n%s", diff)
		}
		w.expect("close 1", "closed a/1@1")
		close(release)
		w.expect("closed b/1@1") // it ends all the same
		if left := w.files.Load(); left != 0 {
			t.Errorf("%d versions' files are not closed", left)
		}
	})
}

// What is loaded from files that changed meanwhile serves nobody, and a load
// that failed for that reason says so.
func TestFilesThatChangeDuringALoadAreNotServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.stop()
		w.verify = func() error { return errs.New(errs.FilesChanged, "other files") }
		w.desire(1, ref("a", 1, 1))
		w.expect("load a/1@1", "gone a_0", "closed a/1@1", "loaded a/1@1 false")
		w.load = func(context.Context, infer.ModelRef) error { return errors.New("half a file") }
		w.desire(2, ref("a", 1, 2))
		if got, want := w.states(), "a/1@2 UNAVAILABLE other files"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if got := w.runs[infer.ModelID{Name: "a"}][0].Reason; got != errs.FilesChanged {
			t.Errorf("the reason is %q", got)
		}
		w.verify = nil
		w.desire(3, ref("a", 1, 3))
		if got, want := w.states(), "a/1@3 UNAVAILABLE half a file"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}

// How a fetch goes on shows while the version loads, and no longer.
func TestProgressShowsWhileAContentLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.stop()
		w.progress = "the store denies"
		release := make(chan bool)
		w.load = func(context.Context, infer.ModelRef) error { <-release; return nil }
		w.desire(1, ref("a", 1, 1))
		synctest.Wait()
		if got, want := w.states(), "a/1@1 LOADING the store denies"; got != want || w.runs[infer.ModelID{Name: "a"}][0].Reason != errs.StoreDenied {
			t.Errorf("%s, want %s", got, want)
		}
		close(release)
		w.events()
		if got, want := w.states(), "a/1@1 READY"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}

func TestWarmupOfFurtherInstancesReadsTheSameFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.stop()
		w.assignWarm(1, 1)
		w.events()
		w.verify = func() error { return errs.New(errs.FilesChanged, "other files") }
		w.assignWarm(1, 2)
		w.expect("run a_1", "run a_1", "gone a_1", "failed a/1@1: other files")
		if got, want := w.states(), "a/1@1 READY other files"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}

func TestDrainUnloadsEverythingAndGivesUpLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.desire(1, ref("a", 1, 1))
		w.load = func(ctx context.Context, _ infer.ModelRef) error {
			<-ctx.Done()
			return ctx.Err()
		}
		w.desire(2, ref("a", 1, 1), ref("b", 1, 1))
		w.expect("load a/1@1", "open a_0", "loaded a/1@1 true", "load b/1@1")
		w.stop()
		w.expect("close 1", "closed a/1@1")
		if got := w.states(); got != "" {
			t.Errorf("%s is left", got)
		}
	})
}

func TestDrainEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.stuck = true
		w.retire = make(chan bool)
		w.desire(1, ref("a", 1, 1))
		w.events()
		start := time.Now()
		w.stop()
		if took := time.Since(start); took != time.Minute {
			t.Errorf("drained for %v, want a minute", took)
		}
		w.expect("failed a/1@1: still runs") // and the model is not closed under its instance
	})
}
