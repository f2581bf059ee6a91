package place_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/services/registry/core/place"
)

// on gives the workers that a placement has a model on.
func on(p place.Placement, name string) string {
	var ids []string
	for _, id := range slices.Sorted(maps.Keys(p.Workers)) {
		if slices.ContainsFunc(p.Workers[id], func(a place.Assigned) bool { return a.Model.Name == name }) {
			ids = append(ids, id)
		}
	}
	return strings.Join(ids, " ")
}

func cpus(ids ...string) (list []place.Worker) {
	for _, id := range ids {
		list = append(list, place.Worker{ID: id, Kind: cpu})
	}
	return list
}

func replicas(n int, at map[string]bool) place.Version {
	v := version("m", 1, group(cpu, 1))
	v.Rules.Replicas, v.AssignedTo = n, at
	return v
}

// edited is a copy of the workers in which one is changed.
func edited(workers []place.Worker, id string, edit func(*place.Worker)) []place.Worker {
	workers = slices.Clone(workers)
	for i := range workers {
		if workers[i].ID == id {
			edit(&workers[i])
		}
	}
	return workers
}

func TestReplicasAreMovedWithoutAGap(t *testing.T) {
	all := cpus("a", "b", "c")
	gone := func(w *place.Worker) { w.Lost = true }
	leaving := func(w *place.Worker) { w.Leaving = true }
	unwell := func(w *place.Worker) { w.Unwell = true }
	for name, tt := range map[string]struct {
		version place.Version
		workers []place.Worker
		want    string
		moving  bool
	}{
		"on as many as asked for":                     {replicas(2, nil), all, "a b", false},
		"on all without a number":                     {replicas(0, nil), all, "a b c", false},
		"stays where it is":                           {replicas(2, map[string]bool{"b": true, "c": true}), all, "b c", false},
		"stays where it loads":                        {replicas(1, map[string]bool{"c": false}), all, "c", false},
		"rather where it is ready":                    {replicas(1, map[string]bool{"b": false, "c": true}), all, "c", false},
		"fewer are let go at once":                    {replicas(1, map[string]bool{"a": true, "b": true, "c": true}), all, "a", false},
		"more are added":                              {replicas(3, map[string]bool{"c": true}), all, "a b c", false},
		"leaving: elsewhere first":                    {replicas(1, map[string]bool{"c": true}), edited(all, "c", leaving), "a c", true},
		"leaving: still loading elsewhere":            {replicas(1, map[string]bool{"a": false, "c": true}), edited(all, "c", leaving), "a c", true},
		"leaving: ready elsewhere":                    {replicas(1, map[string]bool{"a": true, "c": true}), edited(all, "c", leaving), "a", false},
		"leaving: the only worker is not waited":      {replicas(1, map[string]bool{"a": true}), edited(cpus("a"), "a", leaving), "", false},
		"gone: kept while another is ready":           {replicas(2, map[string]bool{"a": true, "b": true}), edited(all, "b", gone), "a b", false},
		"gone: the only one is made elsewhere too":    {replicas(1, map[string]bool{"b": true}), edited(all, "b", gone), "a b", false},
		"gone for good":                               {replicas(2, map[string]bool{"a": true}), cpus("a", "c"), "a c", false},
		"unwell: elsewhere first":                     {replicas(1, map[string]bool{"c": true}), edited(all, "c", unwell), "a c", true},
		"unwell: ready elsewhere":                     {replicas(1, map[string]bool{"a": true, "c": true}), edited(all, "c", unwell), "a", false},
		"unwell: the only worker is better than none": {replicas(1, map[string]bool{"a": true}), edited(cpus("a"), "a", unwell), "a", false},
		"unwell: comes back when it is well":          {replicas(0, map[string]bool{"a": true}), cpus("a", "b"), "a b", false},
		"unwell, and leaving":                         {replicas(1, map[string]bool{"a": true}), edited(edited(cpus("a"), "a", unwell), "a", leaving), "", false},
		"everywhere, and one is unwell":               {replicas(0, map[string]bool{"a": true, "b": true, "c": true}), edited(all, "b", unwell), "a c", false},
		"everywhere, and one leaves":                  {replicas(0, map[string]bool{"a": true, "b": true, "c": true}), edited(all, "b", leaving), "a c", false},
	} {
		t.Run(name, func(t *testing.T) {
			p := place.Assign([]place.Version{tt.version}, tt.workers)
			if got := on(p, "m"); got != tt.want || p.Migrating[tt.version.Model] != tt.moving {
				t.Errorf("on %s, moving %t; want %s, %t", got, p.Migrating[tt.version.Model], tt.want, tt.moving)
			}
		})
	}
}

func TestWhatIsReplacedComesNowhereElse(t *testing.T) {
	v := replicas(0, map[string]bool{"b": true})
	v.Replaced = true
	p := place.Assign([]place.Version{v}, cpus("a", "b", "c"))
	if got := on(p, "m"); got != "b" || len(p.Unplaced) != 0 || len(p.UnderReplicated) != 0 {
		t.Errorf("on %s, %v, %v", got, p.Unplaced, p.UnderReplicated)
	}
}

func TestSpreadAndPack(t *testing.T) {
	workers := []place.Worker{{ID: "a", Kind: cpu, Load: 2}, {ID: "b", Kind: cpu, Load: 5}, {ID: "c", Kind: cpu}}
	var versions []place.Version
	for _, name := range []string{"k", "l", "m", "n"} {
		v := version(name, 1, group(cpu, 1))
		v.Rules = modelconfig.Placement{Replicas: 1, Pack: name == "n"}
		versions = append(versions, v)
	}
	p := place.Assign(versions, workers)
	if diff := cmp.Diff([]string{"c", "c", "a", "b"}, []string{on(p, "k"), on(p, "l"), on(p, "m"), on(p, "n")}); diff != "" {
		t.Error(diff)
	}
}

func TestPoolsAndLabels(t *testing.T) {
	workers := []place.Worker{
		{ID: "a", Kind: cpu, Pool: "default", Labels: map[string]string{"zone": "x"}},
		{ID: "b", Kind: cpu, Pool: "default", Labels: map[string]string{"zone": "y"}},
		{ID: "c", Kind: cpu, Pool: "large", Labels: map[string]string{"zone": "x"}},
	}
	for _, tt := range []struct{ pool, zone, want, cause string }{
		{"default", "", "a b", ""},
		{"large", "", "c", ""},
		{"default", "y", "b", ""},
		{"large", "y", "", "model m asks for workers with the labels zone=y, and pool large has none"},
		{"huge", "", "", "model m is in pool huge, which has no worker: start one with --pool=huge"},
	} {
		v := version("m", 1, group(cpu, 1))
		if v.Pool = tt.pool; tt.zone != "" {
			v.Rules.Labels = map[string]string{"zone": tt.zone}
		}
		p := place.Assign([]place.Version{v}, workers)
		if got := on(p, "m"); got != tt.want || !strings.HasPrefix(p.Unplaced[v.Model], tt.cause) || (p.Unplaced[v.Model] == "") != (tt.cause == "") {
			t.Errorf("pool %s, zone %q: on %q with cause %q; want %q", tt.pool, tt.zone, got, p.Unplaced[v.Model], tt.want)
		}
	}
}

func TestMisfitsSayAmongWhichWorkersOneWasLookedFor(t *testing.T) {
	workers := []place.Worker{
		{ID: "a", Kind: cpu, Pool: "default"}, {ID: "g", Kind: gpu, Pool: "default", Labels: map[string]string{"zone": "x"}}, {ID: "h", Kind: cpu, Pool: "large"},
	}
	for _, tt := range []struct {
		pool, zone string
		group      modelconfig.InstanceGroup
		want       string
	}{
		{"default", "x", group(cpu, 1), "but no worker runs on a CPU in pool default with the labels zone=x:"},
		{"large", "", group(gpu, 1), "but no GPUs are available in pool large:"},
	} {
		v := version("m", 1, tt.group)
		if v.Pool = tt.pool; tt.zone != "" {
			v.Rules.Labels = map[string]string{"zone": tt.zone}
		}
		if got := place.Assign([]place.Version{v}, workers).Unplaced[v.Model]; !strings.Contains(got, tt.want) {
			t.Errorf("cause %q, want %q", got, tt.want)
		}
	}
}

// sized is a model whose instances take memory.
func sized(name string, bytes int64, groups ...modelconfig.InstanceGroup) place.Version {
	v := version(name, 1, groups...)
	v.Bytes = bytes
	return v
}

func TestMemoryIsNotRunOutOf(t *testing.T) {
	workers := []place.Worker{{ID: "a", Kind: cpu, Budget: 10 << 20, Used: 3 << 20}, {ID: "b", Kind: cpu, Budget: 4 << 20}}
	small, large, huge := sized("k", 2<<20, group(cpu, 1)), sized("l", 2<<20, group(cpu, 3)), sized("m", 2<<20, group(cpu, 4))
	p := place.Assign([]place.Version{huge, large, small}, workers)
	if on(p, "k") != "a b" || on(p, "l") != "" || on(p, "m") != "" {
		t.Errorf("placed on %q, %q and %q", on(p, "k"), on(p, "l"), on(p, "m"))
	}
	want := "model l needs 6.0 MiB of memory and worker a has 5.0 MiB left of 10.0 MiB: unload models, add a worker, or raise its --memory-budget"
	if got := p.Unplaced[large.Model]; got != want || !p.WaitingForMemory[large.Model] {
		t.Errorf("cause %q, starved %t", got, p.WaitingForMemory[large.Model])
	}
	// What is there stays, and what comes waits.
	large.AssignedTo = map[string]bool{"a": true}
	p = place.Assign([]place.Version{large, small}, workers)
	if on(p, "l") != "a" || on(p, "k") != "b" || p.UnderReplicated[small.Model] == "" {
		t.Errorf("placed on %q and %q; %v", on(p, "l"), on(p, "k"), p.UnderReplicated)
	}
}

func TestGPUsComeFirstAndCPUsTakeTheRest(t *testing.T) {
	workers := []place.Worker{{ID: "c", Kind: cpu}, {ID: "g", Kind: gpu, Budget: 8}}
	first, second := sized("a", 6, group(auto, 1)), sized("b", 6, group(auto, 1))
	p := place.Assign([]place.Version{first, second}, workers)
	if on(p, "a") != "g" || on(p, "b") != "c" || len(p.Unplaced) != 0 {
		t.Errorf("on %q and %q; %v", on(p, "a"), on(p, "b"), p.Unplaced)
	}
	// When the GPU has room, the CPU's instance goes after the GPU's is ready.
	second.AssignedTo = map[string]bool{"c": true}
	p = place.Assign([]place.Version{second}, workers)
	if on(p, "b") != "c g" || !p.Migrating[second.Model] {
		t.Errorf("on %q", on(p, "b"))
	}
	both := sized("m", 6, group(gpu, 1), group(cpu, 1))
	both.Rules.Replicas = 1
	if p := place.Assign([]place.Version{both}, workers); on(p, "m") != "g" {
		t.Errorf("the only instance is on %q", on(p, "m"))
	}
}

func TestTooFewWorkersAreTold(t *testing.T) {
	v := replicas(3, nil)
	p := place.Assign([]place.Version{v}, cpus("a", "b"))
	want := map[infer.ModelRef]string{v.Model: "model m asks for 3 workers and 2 can run it: start more, or lower placement.replicas"}
	if diff := cmp.Diff(want, p.UnderReplicated); diff != "" || p.WaitingForMemory[v.Model] {
		t.Error(diff)
	}
}

// What only a worker could run that is not well says so, whether it is there or not.
func TestModelsOfUnwellWorkersSayWhy(t *testing.T) {
	const cause = "model m could run on worker g alone, whose device is not well"
	workers := []place.Worker{{ID: "a", Kind: cpu}, {ID: "g", Kind: gpu, Unwell: true}}
	v := version("m", 1, group(gpu, 1))
	if p := place.Assign([]place.Version{v}, workers); on(p, "m") != "" || !strings.HasPrefix(p.Unplaced[v.Model], cause) {
		t.Errorf("a new one is on %q: %v", on(p, "m"), p.Unplaced)
	}
	v.AssignedTo = map[string]bool{"g": true}
	if p := place.Assign([]place.Version{v}, workers); on(p, "m") != "g" || !strings.HasPrefix(p.UnderReplicated[v.Model], cause) || len(p.Unplaced) > 0 {
		t.Errorf("one that is there is on %q: %v, %v", on(p, "m"), p.UnderReplicated, p.Unplaced)
	}
	v.Groups = append(v.Groups, group(cpu, 1))
	if p := place.Assign([]place.Version{v}, workers); on(p, "m") != "a g" || !p.Migrating[v.Model] {
		t.Errorf("one that a CPU can run too is on %q, moving %t", on(p, "m"), p.Migrating[v.Model])
	}
}

// A GPU that a model's backend cannot use is none for it.
func TestModelsOfBackendsThatADeviceLacks(t *testing.T) {
	workers := []place.Worker{{ID: "c", Kind: cpu}, {ID: "g", Kind: gpu, Lacking: map[string]string{"onnxruntime": "install CUDA"}}}
	for _, tt := range []struct {
		backend string
		kind    modelconfig.DeviceKind
		want    string
	}{{"onnxruntime", auto, "c"}, {"python", auto, "g"}, {"onnxruntime", gpu, ""}, {"python", gpu, "g"}, {"onnxruntime", cpu, "c"}} {
		v := version("m", 1, group(tt.kind, 1))
		v.Backend = tt.backend
		p := place.Assign([]place.Version{v}, workers)
		if got := on(p, "m"); got != tt.want || (tt.want == "") != strings.Contains(p.Unplaced[v.Model], "GPU of worker g: install CUDA") {
			t.Errorf("%s on kind %v is on %q: %v", tt.backend, tt.kind, got, p.Unplaced)
		}
	}
}
