package registry_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/bus"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry"
)

func parameter(key, value string) string {
	return `parameters { key: "` + key + `" value { string_value: "` + value + `" } }` + "\n"
}

// runners are the workers that are to run a model.
func runners(all map[string]*nereidv1.AssignmentValue, model string) string {
	var list []string
	for _, key := range slices.Sorted(maps.Keys(all)) {
		worker, name := bus.CutKey(key)
		if name == model && len(all[key].GetVersions()) > 0 {
			list = append(list, worker)
		}
	}
	return strings.Join(list, " ")
}

// runsOn waits until just these workers are to run a model.
func (s *store) runsOn(model, workers string) map[string]*nereidv1.AssignmentValue {
	s.t.Helper()
	all, _ := s.assignments.await(s.t, model+" on "+workers, func(all map[string]*nereidv1.AssignmentValue) bool { return runners(all, model) == workers })
	return all
}

// ready has a worker say that it runs what it should.
func (a *actor) ready(all map[string]*nereidv1.AssignmentValue) {
	a.t.Helper()
	var versions []*nereidv1.WorkerVersion
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if worker, _ := bus.CutKey(key); worker == a.id {
			versions = append(versions, runs(all[key], nil)...)
		}
	}
	a.say(versions)
}

func TestModelLeavesAWorkerWhenItIsReadyElsewhere(t *testing.T) {
	s := newStore(t)
	a, b := s.actor("a"), s.actor("b")
	gateway := play(s, bus.Gateways, "g", knows(1<<62, 0))
	s.start(repository(t, map[string]string{"m/config.pbtxt": echoConfig + parameter("placement.replicas", "1"), "m/1/f": "one"}))
	a.ready(s.runsOn("m", "a"))

	leaving := &nereidv1.WorkerValue{Schema: nereidv1.Schema, WorkerId: "a", Epoch: 1, Device: &nereidv1.WorkerDevice{Kind: cpu}, Leaving: true}
	a.player.say(leaving)
	both := s.runsOn("m", "a b")
	b.ready(both)
	if all, _ := s.assignments.all(t); runners(all, "m") != "a b" {
		t.Error("the model left before the gateway knew where else it is")
	}
	gateway.say(knows(1<<62, 1<<62))
	s.runsOn("m", "b")

	// The worker has given it up, and says so: only then its key goes.
	all, revision := s.assignments.all(t)
	if _, there := all["a/m"]; !there {
		t.Error("what was taken back is deleted before the worker has said that it knows")
	}
	leaving.AssignmentRevision = revision
	a.player.say(leaving)
	s.assignments.await(t, "the key to go", func(all map[string]*nereidv1.AssignmentValue) bool { return all["a/m"] == nil })
}

// A device that is not well loses its models to others, and gets them back.
func TestModelLeavesADeviceThatIsNotWell(t *testing.T) {
	s := newStore(t)
	a, b := s.actor("a"), s.actor("b")
	play(s, bus.Gateways, "g", knows(1<<62, 1<<62))
	s.start(repository(t, map[string]string{"m/config.pbtxt": echoConfig, "m/1/f": "one"}))
	all := s.runsOn("m", "a b")
	a.ready(all)
	b.ready(all)

	value := &nereidv1.WorkerValue{Schema: nereidv1.Schema, WorkerId: "a", Epoch: 1, Device: &nereidv1.WorkerDevice{Kind: cpu}, DeviceProblem: "Xid 79"}
	a.player.say(value)
	s.runsOn("m", "b")
	value.DeviceProblem = ""
	a.player.say(value)
	s.runsOn("m", "a b")
}

func TestModelWaitsForMemory(t *testing.T) {
	s := newStore(t)
	a := s.actorWith("a", func(v *nereidv1.WorkerValue) { v.MemoryBudgetBytes = 10 })
	r := s.startWith(func(c *registry.Config) {
		c.Repositories = []string{repository(t, map[string]string{
			"m/config.pbtxt": echoConfig, "m/1/f": "6bytes",
			"n/config.pbtxt": echoConfig, "n/1/f": "6bytes, too, and more",
		})}
		c.Control, c.LoadModels = registry.ControlExplicit, []string{"m"}
	})
	a.ready(s.runsOn("m", "a"))
	loading := make(chan error, 1)
	go func() { loading <- r.Load(testContext(t), "n", "", nil) }()
	cause := func(name, text string) {
		t.Helper()
		s.models.await(t, "cause of "+name, func(all map[string]*nereidv1.ModelValue) bool {
			versions := all[name].GetVersions()
			return len(versions) == 1 && strings.Contains(versions[0].GetProblem(), text) && (versions[0].GetProblem() == "") == (text == "")
		})
	}
	cause("n", "model n needs 21 bytes of memory and worker a has 4 bytes left of 10 bytes")
	if err := <-loading; err == nil || !strings.Contains(err.Error(), "needs 21 bytes of memory") {
		t.Errorf("Load = %v", err)
	}

	// With a larger budget there is room.
	a.player.say(&nereidv1.WorkerValue{Schema: nereidv1.Schema, WorkerId: "a", Epoch: 1, Device: &nereidv1.WorkerDevice{Kind: cpu}, MemoryBudgetBytes: 30})
	s.runsOn("n", "a")
	cause("n", "")
}

// TestModelThatWaitsComesWhenAnotherTakesLess has a model go from two instances
// to one: the other's memory is free when the worker says that it is.
func TestModelThatWaitsComesWhenAnotherTakesLess(t *testing.T) {
	s := newStore(t)
	offer := func(v *nereidv1.WorkerValue) { v.MemoryBudgetBytes = 25 }
	a := s.actorWith("a", offer)
	of := func(count string) string {
		return echoConfig + "instance_group { kind: KIND_CPU count: " + count + " }"
	}
	root := repository(t, map[string]string{
		"m/config.pbtxt": of("2"), "m/1/f": "ten bytes.",
		"n/config.pbtxt": echoConfig, "n/1/f": "ten bytes.",
	})
	r := s.startWith(func(c *registry.Config) {
		c.Repositories, c.Control, c.LoadModels = []string{root}, registry.ControlExplicit, []string{"m", "n"}
	})
	a.ready(s.runsOn("m", "a"))
	waits := func(all map[string]*nereidv1.ModelValue) bool {
		return strings.Contains(all["n"].GetVersions()[0].GetProblem(), "needs 10 bytes of memory and worker a has 5 bytes left")
	}
	s.models.await(t, "n to wait", waits)

	write(t, root+"/m/config.pbtxt", of("1"))
	loaded := make(chan error, 1)
	go func() { loaded <- r.Load(testContext(t), "m", "", nil) }()
	all, revision := s.assignments.await(t, "one instance", func(all map[string]*nereidv1.AssignmentValue) bool {
		versions := all["a/m"].GetVersions()
		return len(versions) == 1 && versions[0].GetGroups()[0].GetCount() == 1
	})
	a.ready(all)
	if err := <-loaded; err != nil {
		t.Fatal(err)
	}
	if all, _ := s.models.all(t); !waits(all) {
		t.Errorf("n does not wait for the worker to give the memory up: %v", all["n"])
	}
	done := &nereidv1.WorkerValue{Schema: nereidv1.Schema, WorkerId: "a", Epoch: 1, Device: &nereidv1.WorkerDevice{Kind: cpu}, AssignmentRevision: revision}
	offer(done)
	a.player.say(done)
	s.runsOn("n", "a")
}

func TestMeasuredMemoryCountsOnOtherWorkers(t *testing.T) {
	s := newStore(t)
	a := s.actorWith("a", func(v *nereidv1.WorkerValue) { v.MemoryBudgetBytes = 3000 })
	s.actorWith("b", func(v *nereidv1.WorkerValue) { v.MemoryBudgetBytes = 800 })
	s.start(repository(t, map[string]string{"m/config.pbtxt": echoConfig, "m/1/f": strings.Repeat("weight", 300)}))
	versions := runs(s.runsOn("m", "a")["a/m"], nil) // as large as its file
	versions[0].MemoryBytes, versions[0].Instances = 700, []*nereidv1.WorkerInstance{{Slot: 1}}
	a.say(versions)
	s.runsOn("m", "a b")
}

func TestModelMovesToAnotherPoolWithoutAGap(t *testing.T) {
	s := newStore(t)
	root := repository(t, map[string]string{"m/config.pbtxt": echoConfig, "m/1/f": "one"})
	in := func(pool string) func(*nereidv1.WorkerValue) {
		return func(v *nereidv1.WorkerValue) { v.Labels = map[string]string{"pool": pool} }
	}
	a := s.actor("a")
	r := s.startWith(func(c *registry.Config) {
		c.Repositories, c.Control, c.LoadModels = []string{root}, registry.ControlExplicit, []string{"m"}
		c.PoolModels = []string{"large=other"}
	})
	a.ready(s.runsOn("m", "a"))
	write(t, root+"/m/config.pbtxt", echoConfig+parameter("placement.pool", "large"))
	if err := r.Load(testContext(t), "m", "", nil); err != nil {
		t.Fatal(err)
	}
	b := s.actorWith("b", in("large"))
	b.ready(s.runsOn("m", "a b"))
	s.models.await(t, "the pool", func(all map[string]*nereidv1.ModelValue) bool { return all["m"].GetPool() == "large" })
	s.runsOn("m", "b")
	pools := viewOf[*nereidv1.PoolValue](t, s.bus, bus.Pools)
	pools.await(t, "pools", func(all map[string]*nereidv1.PoolValue) bool {
		return len(all) == 2 && all["default"] != nil && slices.Equal(all["large"].GetModels(), []string{"other"})
	})
}

func TestPoolsThatContradictAreRefused(t *testing.T) {
	for want, pools := range map[string][]string{
		"a list":  {"a="},
		"blanks":  {"a b=m"},
		"nothing": nil,
		"to one":  {"a=m", "b=m"},
	} {
		c := registry.Default()
		c.Repositories, c.PoolModels = []string{"r"}, pools
		if err := c.Validate(); (err == nil) != (pools == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", pools, err)
		}
	}
}
