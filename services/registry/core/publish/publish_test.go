package publish_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core/catalog"
	"github.com/nereid-serving/nereid/services/registry/core/place"
	"github.com/nereid-serving/nereid/services/registry/core/publish"
)

// bucket stores writes as the real one does: one revision per write, also of
// a deletion, and only for a writer that knows the key's.
type bucket struct {
	t        *testing.T
	models   publish.Models
	revision uint64
}

func newBucket(t *testing.T) *bucket { return &bucket{t: t, models: make(publish.Models)} }

// publish brings the bucket to hold the models and returns the names written.
func (b *bucket) publish(models ...catalog.Model) []string {
	return b.apply(publish.DiffModels(&catalog.Snapshot{Models: models}, b.models, b.revision, publish.Observed{}))
}

func (b *bucket) apply(writes []publish.ModelWrite) []string {
	var names []string
	for _, w := range writes {
		if w.Replaces != b.models[w.Key].Revision {
			b.t.Errorf("write of %s replaces %d, the key has %d", w.Key, w.Replaces, b.models[w.Key].Revision)
		}
		b.revision++
		names = append(names, w.Key)
		if w.Value == nil {
			delete(b.models, w.Key)
			continue
		}
		b.models[w.Key] = publish.Model{Value: stored(b.t, w.Value), Revision: b.revision}
	}
	return names
}

// stored is what a value becomes on its way through the bucket.
func stored(t *testing.T, v *nereidv1.ModelValue) *nereidv1.ModelValue {
	t.Helper()
	data, err := nereidv1.MarshalValue(v)
	if err != nil {
		t.Fatal(err)
	}
	out := new(nereidv1.ModelValue)
	if err := nereidv1.UnmarshalValue(data, out); err != nil {
		t.Fatal(err)
	}
	return out
}

func (b *bucket) generation(name string) uint64 {
	return b.models[name].Value.GetVersions()[0].GetGeneration()
}

func model(name, digest string, maxBatch int32) catalog.Model {
	config := &inference.ModelConfig{
		Name: name, Backend: "echo", MaxBatchSize: maxBatch,
		Input:  []*inference.ModelInput{{Name: "x", DataType: inference.DataType_TYPE_FP32, Dims: []int64{1}}},
		Output: []*inference.ModelOutput{{Name: "y", DataType: inference.DataType_TYPE_FP32, Dims: []int64{1}}},
	}
	modelconfig.Normalize(config, modelconfig.Directory{Name: name})
	return catalog.Model{
		Name: name, URL: "file:///r/" + name, Config: config,
		Versions: []catalog.Version{{Number: 1, Digest: digest, URL: "file:///r/" + name + "/1"}},
	}
}

func TestModelValue(t *testing.T) {
	b := newBucket(t)
	b.publish(model("m", "d", 4))
	want := &nereidv1.ModelValue{
		Schema: 1, Name: "m", Url: "file:///r/m", Config: model("m", "d", 4).Config,
		Versions: []*nereidv1.ModelVersion{{
			Version: 1, Generation: 1, Digest: "d", Url: "file:///r/m/1", Desired: nereidv1.DesiredState_DESIRED_STATE_SERVE,
		}},
	}
	if diff := cmp.Diff(want, b.models["m"].Value, protocmp.Transform()); diff != "" {
		t.Errorf("value (-want +got):\n%s", diff)
	}
}

func TestOnlyChangesAreWritten(t *testing.T) {
	b := newBucket(t)
	broken := catalog.Model{Name: "broken", Problem: "because"}
	b.publish(broken, model("m", "d", 4), model("n", "d", 4))
	tests := []struct {
		name   string
		models []catalog.Model
		want   []string
	}{
		{"same", []catalog.Model{broken, model("m", "d", 4), model("n", "d", 4)}, nil},
		{"files", []catalog.Model{broken, model("m", "e", 4), model("n", "d", 4)}, []string{"m"}},
		{"configuration", []catalog.Model{broken, model("m", "e", 4), model("n", "d", 8)}, []string{"n"}},
		{"broken", []catalog.Model{{Name: "broken", Problem: "else"}, model("m", "e", 4), model("n", "d", 8)}, []string{"broken"}},
		{"removed", []catalog.Model{model("n", "d", 8)}, []string{"broken", "m"}},
		{"empty", nil, []string{"n"}},
	}
	for _, tt := range tests {
		if diff := cmp.Diff(tt.want, b.publish(tt.models...)); diff != "" {
			t.Errorf("%s: written (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestGenerationGrowsAndNeverComesBack(t *testing.T) {
	b := newBucket(t)
	b.publish(model("m", "d", 4))
	last := b.generation("m")
	kept := func(step string, models ...catalog.Model) {
		t.Helper()
		b.publish(models...)
		if got := b.generation("m"); got != last {
			t.Errorf("%s: generation %d, want the same %d", step, got, last)
		}
	}
	grown := func(step string, models ...catalog.Model) {
		t.Helper()
		b.publish(models...)
		if got := b.generation("m"); got <= last {
			t.Errorf("%s: generation %d, want more than %d", step, got, last)
		}
		last = b.generation("m")
	}
	kept("another model comes", model("a", "d", 4), model("m", "d", 4))
	grown("files change", model("m", "e", 4))
	first := b.models["m"].Value.GetPrevious().GetVersions()[0].GetGeneration()
	b.publish(model("m", "d", 4))
	if got := b.generation("m"); got != first || b.models["m"].Value.GetPrevious() != nil {
		t.Errorf("files change back while the old content serves: generation %d, want %d and nothing to wait for", got, first)
	}
	grown("configuration changes", model("m", "d", 8))
	b.publish()
	grown("deleted and added again", model("m", "d", 8))
}

func TestPlacementsCausesAreMarkedAndCleared(t *testing.T) {
	b := newBucket(t)
	unreadable := model("unreadable", "", 4)
	unreadable.Versions[0].Problem = "cannot be read"
	models := []catalog.Model{model("m", "d", 4), model("n", "d", 4), unreadable}
	b.publish(models...)
	ref := infer.ModelRef{Name: "m", Version: 1, Generation: b.generation("m")}
	causes := map[infer.ModelRef]string{ref: "no GPU"}

	if diff := cmp.Diff([]string{"m"}, b.apply(publish.MarkUnplaced(b.models, causes))); diff != "" {
		t.Errorf("marked (-want +got):\n%s", diff)
	}
	if got := b.models["m"].Value.GetVersions()[0].GetProblem(); got != "no GPU" {
		t.Errorf("problem = %q", got)
	}
	if again := b.apply(publish.MarkUnplaced(b.models, causes)); again != nil {
		t.Errorf("marked again: %v", again)
	}
	if names := b.publish(models...); names != nil {
		t.Errorf("an unchanged snapshot writes %v over the placement's cause", names)
	}
	if diff := cmp.Diff([]string{"m"}, b.apply(publish.MarkUnplaced(b.models, nil))); diff != "" {
		t.Errorf("cleared (-want +got):\n%s", diff)
	}
	if got := b.models["unreadable"].Value.GetVersions()[0].GetProblem(); got != "cannot be read" {
		t.Errorf("the snapshot's problem became %q", got)
	}
}

func TestVersionsToPlace(t *testing.T) {
	b := newBucket(t)
	unreadable := model("unreadable", "", 4)
	unreadable.Versions[0].Problem = "cannot be read"
	b.publish(model("m", "d", 4), model("off", "d", 4), model("odd", "d", 4), unreadable, catalog.Model{Name: "broken", Problem: "because"})
	edit(b, "off", func(v *nereidv1.ModelValue) { v.Versions[0].Desired = nereidv1.DesiredState_DESIRED_STATE_UNLOADED })
	edit(b, "odd", func(v *nereidv1.ModelValue) { v.Config.MaxBatchSize = -1 })

	versions, causes := publish.Versions(b.models, nil)
	if len(versions) != 1 || versions[0].Model.Name != "m" || versions[0].Groups[0].Kind != modelconfig.KindAuto {
		t.Errorf("versions = %+v, want m alone", versions)
	}
	if len(causes) != 1 || causes[infer.ModelRef{Name: "odd", Version: 1, Generation: 1}] == "" {
		t.Errorf("causes = %v, want one for odd", causes)
	}
}

func edit(b *bucket, name string, change func(*nereidv1.ModelValue)) {
	value := proto.CloneOf(b.models[name].Value)
	change(value)
	b.apply([]publish.ModelWrite{{Key: name, Value: value, Replaces: b.models[name].Revision}})
}

func TestWorkers(t *testing.T) {
	pools := publish.Pools{{Name: "large", Labels: map[string]string{"zone": "a"}}}
	labels := func(zone string) map[string]string { return map[string]string{"pool": "large", "zone": zone} }
	for name, tt := range map[string]struct {
		value *nereidv1.WorkerValue
		want  place.Worker
	}{
		"that states nothing": {&nereidv1.WorkerValue{}, place.Worker{ID: "w", Kind: modelconfig.KindCPU, Pool: "default"}},
		"of a GPU": {
			&nereidv1.WorkerValue{Device: &nereidv1.WorkerDevice{Kind: nereidv1.DeviceKind_DEVICE_KIND_GPU, Number: 3}, MemoryBudgetBytes: 7, Leaving: true},
			place.Worker{ID: "w", Kind: modelconfig.KindGPU, Number: 3, Pool: "default", Budget: 7, Leaving: true},
		},
		"of a GPU that is sick": {
			&nereidv1.WorkerValue{Device: &nereidv1.WorkerDevice{Kind: nereidv1.DeviceKind_DEVICE_KIND_GPU}, DeviceProblem: "Xid 79", Lacking: map[string]string{"onnxruntime": "no CUDA"}},
			place.Worker{ID: "w", Kind: modelconfig.KindGPU, Pool: "default", Unwell: true, Lacking: map[string]string{"onnxruntime": "no CUDA"}},
		},
		"with its pool's labels":    {&nereidv1.WorkerValue{Labels: labels("a")}, place.Worker{ID: "w", Kind: modelconfig.KindCPU, Pool: "large", Labels: labels("a")}},
		"without its pool's labels": {&nereidv1.WorkerValue{Labels: labels("b")}, place.Worker{ID: "w", Kind: modelconfig.KindCPU, Labels: labels("b")}},
		"of an unconfigured pool":   {&nereidv1.WorkerValue{Labels: map[string]string{"pool": "p"}}, place.Worker{ID: "w", Kind: modelconfig.KindCPU, Pool: "p", Labels: map[string]string{"pool": "p"}}},
	} {
		if diff := cmp.Diff(tt.want, publish.Worker("w", tt.value, pools)); diff != "" {
			t.Errorf("a worker %s (-want +got):\n%s", name, diff)
		}
	}
}

func TestPoolsOfModels(t *testing.T) {
	pools := publish.Pools{{Name: "large", Models: []string{"bert", "gpt"}}}
	says := func(pool string) *inference.ModelConfig {
		return &inference.ModelConfig{Parameters: map[string]*inference.ModelParameter{"placement.pool": {StringValue: pool}}}
	}
	for _, tt := range []struct {
		name   string
		config *inference.ModelConfig
		want   string
	}{{"digits", nil, "default"}, {"bert", nil, "large"}, {"bert", says("slo"), "slo"}, {"digits", says("slo"), "slo"}} {
		if got := pools.OfModel(infer.ModelID{Namespace: "/r", Name: tt.name}, tt.config); got != tt.want {
			t.Errorf("%s %v is in %s, want %s", tt.name, tt.config, got, tt.want)
		}
	}
	if got := publish.PoolOf(publish.WithPool(&nereidv1.ModelValue{Pool: "slo"}, "default")); got != "default" {
		t.Errorf("moved to %s", got)
	}
	want := map[string]*nereidv1.PoolValue{"default": {Schema: 1, Name: "default"}, "large": {Schema: 1, Name: "large", Models: []string{"bert", "gpt"}}}
	if diff := cmp.Diff(want, pools.Values(), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

func TestAssignmentsAreByWorkerAndModel(t *testing.T) {
	ref := infer.ModelRef{Name: "m", Version: 1, Generation: 5}
	next := infer.ModelRef{Name: "m", Version: 1, Generation: 6}
	other := infer.ModelRef{Namespace: "/r", Name: "n", Version: 2, Generation: 1}
	groups := []place.Group{{Name: "m_0", Kind: modelconfig.KindGPU, Device: 1, Count: 2, Passive: true, HostPolicy: "near"}}
	parts := publish.Parts(place.Placement{Workers: map[string][]place.Assigned{"w": {{Model: ref, Groups: groups}, {Model: next}, {Model: other}}, "idle": nil}})
	m := parts[publish.Part{Worker: "w", Model: "m"}]
	want := map[publish.Part][]place.Assigned{{Worker: "w", Model: "m"}: {{Model: ref, Groups: groups}, {Model: next}}, {Worker: "w", Model: "/r/n"}: {{Model: other}}}
	if diff := cmp.Diff(want, parts); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}

	got := publish.Assign("w", m, 7, 3)
	value := &nereidv1.AssignmentValue{
		Schema: 1, WorkerId: "w", ModelsRevision: 7, LeaderEpoch: 3,
		Versions: []*nereidv1.AssignedVersion{{
			Model: &nereidv1.ModelRef{Name: "m", Version: 1, Generation: 5},
			Groups: []*nereidv1.AssignedGroup{{
				Name: "m_0", Kind: nereidv1.DeviceKind_DEVICE_KIND_GPU, Device: 1, Count: 2, Passive: true, HostPolicy: "near",
			}},
		}, {Model: &nereidv1.ModelRef{Name: "m", Version: 1, Generation: 6}}},
	}
	if diff := cmp.Diff(value, got, protocmp.Transform()); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
	if !publish.Assigns(got, m) || publish.Assigns(got, m[:1]) || publish.Assigns(got, nil) || !publish.Assigns(publish.Assign("w", nil, 7, 3), nil) {
		t.Error("a value is not told from other versions")
	}
	for name, change := range map[string]func(*place.Group){
		"name": func(g *place.Group) { g.Name = "x" }, "kind": func(g *place.Group) { g.Kind = modelconfig.KindCPU }, "device": func(g *place.Group) { g.Device = 2 },
		"count": func(g *place.Group) { g.Count = 3 }, "passive": func(g *place.Group) { g.Passive = false }, "policy": func(g *place.Group) { g.HostPolicy = "far" },
	} {
		other := groups[0]
		change(&other)
		if publish.Assigns(got, []place.Assigned{{Model: ref, Groups: []place.Group{other}}, {Model: next}}) {
			t.Errorf("another %s is not noticed", name)
		}
	}
}
