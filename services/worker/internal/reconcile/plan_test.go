package reconcile

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
)

func ref(name string, version int64, generation uint64) infer.ModelRef {
	return infer.ModelRef{Name: name, Version: version, Generation: generation}
}

func wanted(r infer.ModelRef, count int) want {
	return want{ref: r, groups: []Group{{Name: "g", Count: count}}, version: &Version{}}
}

func waiting(r infer.ModelRef) want { return want{ref: r, groups: []Group{{Name: "g", Count: 1}}} }

func has(r infer.ModelRef, s infer.InstanceState) held {
	return held{ref: r, state: s, groups: []Group{{Name: "g", Count: 1}}}
}

func settled(h held) held { h.settled = true; return h }

func resizing(h held) held { h.resizing = true; return h }

func (s step) String() string {
	names := [...]string{load: "load", resize: "resize", abandon: "abandon", unload: "unload", forget: "forget"}
	return fmt.Sprintf("%s %v", names[s.do], s.ref)
}

func TestPlan(t *testing.T) {
	a1, a2, b1 := ref("a", 1, 1), ref("a", 1, 2), ref("b", 1, 1)
	for name, tt := range map[string]struct {
		wants []want
		have  []held
		steps string
		final bool
	}{
		"nothing":                        {final: true},
		"new version":                    {wants: []want{wanted(a1, 1), wanted(b1, 1)}, steps: "load a/1@1, load b/1@1"},
		"version that is not known yet":  {wants: []want{waiting(a1)}},
		"loading":                        {wants: []want{wanted(a1, 1)}, have: []held{has(a1, infer.Loading)}},
		"ready":                          {wants: []want{wanted(a1, 1)}, have: []held{has(a1, infer.Ready)}, final: true},
		"failed is not tried again":      {wants: []want{wanted(a1, 1)}, have: []held{has(a1, infer.Unavailable)}, final: true},
		"other number of instances":      {wants: []want{wanted(a1, 2)}, have: []held{has(a1, infer.Ready)}, steps: "resize a/1@1"},
		"being resized":                  {wants: []want{wanted(a1, 2)}, have: []held{resizing(has(a1, infer.Ready))}},
		"not wanted any more":            {have: []held{has(a1, infer.Ready)}, steps: "unload a/1@1"},
		"not wanted while it is resized": {have: []held{resizing(has(a1, infer.Ready))}, steps: "abandon a/1@1"},
		"not wanted while it is loaded":  {have: []held{has(a1, infer.Loading)}, steps: "abandon a/1@1"},
		"not wanted and failed":          {have: []held{has(a1, infer.Unavailable)}, steps: "forget a/1@1", final: true},
		"unloading":                      {have: []held{has(a1, infer.Unloading)}},
		"wanted again while it unloads":  {wants: []want{wanted(a1, 1)}, have: []held{has(a1, infer.Unloading)}},
		"kept while the new generation is not known": {
			wants: []want{waiting(a2)}, have: []held{has(a1, infer.Ready)},
		},
		"new generation is loaded first": {
			wants: []want{wanted(a2, 1)}, have: []held{has(a1, infer.Ready)}, steps: "load a/1@2",
		},
		"kept while the new generation is loaded": {
			wants: []want{wanted(a2, 1)}, have: []held{has(a1, infer.Ready), has(a2, infer.Loading)},
		},
		"kept until the new generation is known to be ready": {
			wants: []want{wanted(a2, 1)}, have: []held{has(a1, infer.Ready), has(a2, infer.Ready)},
		},
		"retired when the new generation serves": {
			wants: []want{wanted(a2, 1)}, have: []held{has(a1, infer.Ready), settled(has(a2, infer.Ready))}, steps: "unload a/1@1",
		},
		"serves on when the new generation failed": {
			wants: []want{wanted(a2, 1)}, have: []held{has(a1, infer.Ready), has(a2, infer.Unavailable)}, final: true,
		},
		"back to the generation that serves": {
			wants: []want{wanted(a1, 1)}, have: []held{has(a1, infer.Ready), has(a2, infer.Loading)}, steps: "abandon a/1@2",
		},
		"a failed generation goes with its successor": {
			wants: []want{wanted(a2, 1)}, have: []held{has(a1, infer.Unavailable), has(a2, infer.Loading)}, steps: "forget a/1@1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			steps, final := plan(tt.wants, tt.have)
			var lines []string
			for _, s := range steps {
				lines = append(lines, s.String())
			}
			if diff := cmp.Diff(tt.steps, strings.Join(lines, ", ")); diff != "" {
				t.Error(diff)
			}
			if final != tt.final {
				t.Errorf("settled = %v, want %v", final, tt.final)
			}
		})
	}
}

// A version that was taken out of service is kept while it is assigned: gateways may
// send requests to it until the registry has heard from all of them.
func TestWants(t *testing.T) {
	d := NewDesired()
	c := new(modelconfig.Config)
	d.SetModel("a", []Version{
		{Ref: ref("a", 1, 2), Serve: true, Config: c}, {Ref: ref("a", 1, 1), Serve: true, Config: c}, // in place of which it comes
		{Ref: ref("a", 2, 1), Config: c}, {Ref: ref("a", 4, 1), Serve: true, Config: c},
	}, 5)
	d.SetModel("gone", []Version{{Ref: ref("gone", 1, 1), Serve: true}}, 6)
	d.SetModel("gone", nil, 7)
	d.ModelsKnown(3)
	list := []Assigned{
		{Ref: ref("gone", 1, 1)},
		{Ref: ref("a", 4, 9)},
		{Ref: ref("a", 3, 1)},
		{Ref: ref("a", 2, 1)},
		{Ref: ref("a", 1, 2)},
		{Ref: ref("a", 1, 1)},
		{Ref: ref("a", 1, 2)},
	}
	if d.known() {
		t.Error("known before the assignments are")
	}
	assign(d, Assignment{Versions: list, LeaderEpoch: 4, Revision: 8, ModelsRevision: 7})
	d.AssignmentKnown()
	want := []string{"a/1@1 true", "a/1@2 true", "a/2@1 past", "a/3@1 past", "a/4@9 false", "gone/1@1 past"}
	if diff := cmp.Diff(want, texts(d)); diff != "" {
		t.Error(diff)
	}
	if !d.known() || d.modelsRevision != 7 || d.assignmentRevision != 8 {
		t.Errorf("known %v at revisions %d and %d, want 7 and 8", d.known(), d.modelsRevision, d.assignmentRevision)
	}
	assign(d, Assignment{Versions: list, LeaderEpoch: 4, Revision: 9, ModelsRevision: 8})
	want = []string{"a/1@1 true", "a/1@2 true", "a/2@1 past", "a/3@1 false", "a/4@9 false", "gone/1@1 false"}
	if diff := cmp.Diff(want, texts(d)); diff != "" {
		t.Errorf("behind the assignment's models: %s", diff)
	}
}

func TestDeposedLeadersAreRefusedFromTheHeadOn(t *testing.T) {
	a := infer.ModelID{Name: "a"}
	by := func(epoch, revision uint64) Assignment {
		return Assignment{Versions: []Assigned{{Ref: ref("a", 1, revision)}}, LeaderEpoch: epoch, Revision: revision}
	}
	d := NewDesired()
	for _, step := range []struct {
		what string
		took bool
		want bool
	}{
		{"the first leader's", d.Assign(a, by(1, 5)), true},
		{"the next leader's head", d.SetHead(Head{Revision: 9, LeaderEpoch: 2}), true},
		{"the first leader's, told late", d.Assign(a, by(1, 8)), true},
		{"the first leader's, written late", d.Assign(a, by(1, 10)), false},
		{"the first leader's head", d.SetHead(Head{Revision: 11, LeaderEpoch: 1}), false},
		{"the next leader's", d.Assign(a, by(2, 12)), true},
	} {
		if step.took != step.want {
			t.Errorf("%s is taken: %t", step.what, step.took)
		}
	}
	d.DropHead(13)
	if d.Assign(a, by(1, 14)) {
		t.Error("a deposed leader's is taken after the head was deleted")
	}
	d.Orphan()
	if d.Assign(a, by(1, 15)) || !d.Assign(a, by(3, 16)) || !d.SetHead(Head{Revision: 17, LeaderEpoch: 3}) {
		t.Error("after the store lost all, deposed leaders are not told from the next one")
	}
}

// A worker that was believed gone runs on until all it should run is told.
func TestDeletedAssignmentsStayUntilTheHead(t *testing.T) {
	d := NewDesired()
	assign(d, Assignment{Versions: []Assigned{{Ref: ref("a", 1, 1)}, {Ref: ref("b", 1, 1)}, {Ref: ref("c", 1, 1)}}, LeaderEpoch: 1, Revision: 1})
	d.DropHead(2)
	for i, name := range []string{"a", "b", "c"} {
		d.Unassign(infer.ModelID{Name: name}, uint64(i+3))
	}
	d.Assign(infer.ModelID{Name: "a"}, Assignment{Versions: []Assigned{{Ref: ref("a", 1, 2)}}, LeaderEpoch: 1, Revision: 6})
	d.Assign(infer.ModelID{Name: "c"}, Assignment{LeaderEpoch: 1, Revision: 7})
	if diff := cmp.Diff([]string{"a/1@2 past", "b/1@1 past"}, texts(d)); diff != "" || d.synced {
		t.Errorf("before the head: %s", diff)
	}
	d.SetHead(Head{Revision: 8, LeaderEpoch: 1})
	if diff := cmp.Diff([]string{"a/1@2 past"}, texts(d)); diff != "" || !d.synced || d.assignmentRevision != 8 {
		t.Errorf("with the head: %s", diff)
	}
}

// What a worker was assigned holds on when the store has lost it, until the head
// says that all that still holds is there again.
func TestLostAssignmentsStayUntilTheHead(t *testing.T) {
	d := NewDesired()
	assign(d, Assignment{Versions: []Assigned{{Ref: ref("a", 1, 1)}, {Ref: ref("b", 1, 1)}}, LeaderEpoch: 1, Revision: 1})
	d.Orphan()
	if diff := cmp.Diff([]string{"a/1@1 past", "b/1@1 past"}, texts(d)); diff != "" || d.synced {
		t.Errorf("lost: %s", diff)
	}
	d.Assign(infer.ModelID{Name: "a"}, Assignment{Versions: []Assigned{{Ref: ref("a", 1, 1)}}, LeaderEpoch: 9, Revision: 9})
	d.SetHead(Head{Revision: 10, LeaderEpoch: 9})
	d.Unassign(infer.ModelID{Name: "b"}, 10) // told when nobody has written it again
	if diff := cmp.Diff([]string{"a/1@1 past"}, texts(d)); diff != "" {
		t.Errorf("with the head: %s", diff)
	}
}

func texts(d *Desired) (list []string) {
	for _, model := range slices.SortedFunc(maps.Keys(d.assigned), infer.ModelID.Compare) {
		for _, w := range d.wants(model) {
			text := fmt.Sprint(w.version != nil)
			if w.past {
				text = "past"
			}
			list = append(list, fmt.Sprintf("%v %s", w.ref, text))
		}
	}
	return list
}

func TestMissingInstances(t *testing.T) {
	g := Group{Name: "m_0", Count: 3}
	have := missing([]Group{{Name: "m_0", Count: 2}}, nil)
	var names []string
	for _, l := range missing([]Group{g, {Name: "m_1", Count: 1, Passive: true}}, have) {
		names = append(names, l.name)
	}
	if diff := cmp.Diff([]string{"m_0_2", "m_1_0"}, names); diff != "" {
		t.Error(diff)
	}
	if !wants([]Group{g}, have[1]) || wants([]Group{{Name: "m_0", Count: 1}}, have[1]) {
		t.Error("surplus instances are not told from the others")
	}
}

func TestBackendsRunOnTheirDevices(t *testing.T) {
	for _, tt := range []struct {
		backend string
		kind    modelconfig.DeviceKind
		want    string
	}{
		{"onnxruntime", modelconfig.KindCPU, ""},
		{"onnxruntime", modelconfig.KindAuto, ""},
		{"onnxruntime", modelconfig.KindGPU, ""},
		{"repeat", modelconfig.KindGPU, "has kind KIND_GPU, but backend repeat runs on CPUs: use KIND_CPU"},
		{"echo", modelconfig.KindGPU, ""},
		{"fil", modelconfig.KindCPU, ""}, // refused for its backend
		{"tensorrt", modelconfig.KindGPU, ""},
		{"tensorrt", modelconfig.KindCPU, "is not on a GPU, but backend tensorrt runs on GPUs alone: use KIND_GPU"},
		{"nosuch", modelconfig.KindGPU, ""},
	} {
		d := NewDesired()
		a := ref("a", 1, 1)
		d.SetModel("a", []Version{{Ref: a, Serve: true, Config: &modelconfig.Config{Name: "a", Backend: tt.backend}}}, 1)
		assign(d, Assignment{Versions: []Assigned{{Ref: a, Groups: []Group{{Name: "a_0", Kind: tt.kind, Count: 1}}}}})
		err := d.wants(a.ID())[0].err
		if got := fmt.Sprint(err); (err != nil) != (tt.want != "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s on kind %d: %v, want %q", tt.backend, tt.kind, err, tt.want)
		}
	}
}
