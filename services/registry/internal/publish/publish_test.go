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
	"github.com/nereid-serving/nereid/services/registry/internal/place"
	"github.com/nereid-serving/nereid/services/registry/internal/publish"
	"github.com/nereid-serving/nereid/services/registry/internal/snapshot"
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
func (b *bucket) publish(models ...snapshot.Model) []string {
	return b.apply(publish.DiffModels(&snapshot.Snapshot{Models: models}, b.models, b.revision, publish.Observed{}))
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

func model(name, digest string, maxBatch int32) snapshot.Model {
	config := &inference.ModelConfig{
		Name: name, Backend: "echo", MaxBatchSize: maxBatch,
		Input:  []*inference.ModelInput{{Name: "x", DataType: inference.DataType_TYPE_FP32, Dims: []int64{1}}},
		Output: []*inference.ModelOutput{{Name: "y", DataType: inference.DataType_TYPE_FP32, Dims: []int64{1}}},
	}
	modelconfig.Normalise(config, modelconfig.Directory{Name: name})
	return snapshot.Model{
		Name: name, URL: "file:///r/" + name, Config: config,
		Versions: []snapshot.Version{{Number: 1, Digest: digest, URL: "file:///r/" + name + "/1"}},
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
	broken := snapshot.Model{Name: "broken", Problem: "because"}
	b.publish(broken, model("m", "d", 4), model("n", "d", 4))
	tests := []struct {
		name   string
		models []snapshot.Model
		want   []string
	}{
		{"same", []snapshot.Model{broken, model("m", "d", 4), model("n", "d", 4)}, nil},
		{"files", []snapshot.Model{broken, model("m", "e", 4), model("n", "d", 4)}, []string{"m"}},
		{"configuration", []snapshot.Model{broken, model("m", "e", 4), model("n", "d", 8)}, []string{"n"}},
		{"broken", []snapshot.Model{{Name: "broken", Problem: "else"}, model("m", "e", 4), model("n", "d", 8)}, []string{"broken"}},
		{"removed", []snapshot.Model{model("n", "d", 8)}, []string{"broken", "m"}},
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
	kept := func(step string, models ...snapshot.Model) {
		t.Helper()
		b.publish(models...)
		if got := b.generation("m"); got != last {
			t.Errorf("%s: generation %d, want the same %d", step, got, last)
		}
	}
	grown := func(step string, models ...snapshot.Model) {
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
	models := []snapshot.Model{model("m", "d", 4), model("n", "d", 4), unreadable}
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
	b.publish(model("m", "d", 4), model("off", "d", 4), model("odd", "d", 4), unreadable, snapshot.Model{Name: "broken", Problem: "because"})
	edit(b, "off", func(v *nereidv1.ModelValue) { v.Versions[0].Desired = nereidv1.DesiredState_DESIRED_STATE_UNLOADED })
	edit(b, "odd", func(v *nereidv1.ModelValue) { v.Config.MaxBatchSize = -1 })

	versions, causes := publish.Versions(b.models)
	if len(versions) != 1 || versions[0].Model.Name != "m" || versions[0].Groups[0].Kind != modelconfig.KindCPU {
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
	got := publish.Workers(map[string]*nereidv1.WorkerValue{
		"w2": {Device: &nereidv1.WorkerDevice{Kind: nereidv1.DeviceKind_DEVICE_KIND_GPU, Number: 3}},
		"w1": {Device: &nereidv1.WorkerDevice{Kind: nereidv1.DeviceKind_DEVICE_KIND_CPU}},
		"w0": {},
	})
	want := []place.Worker{{ID: "w0", Kind: modelconfig.KindCPU}, {ID: "w1", Kind: modelconfig.KindCPU}, {ID: "w2", Kind: modelconfig.KindGPU, Number: 3}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Workers (-want +got):\n%s", diff)
	}
}

func TestAssignmentsAreWrittenForChangesAndEpochs(t *testing.T) {
	ref := infer.ModelRef{Name: "m", Version: 1, Generation: 5}
	groups := []place.Group{{Name: "m_0", Kind: modelconfig.KindGPU, Device: 1, Count: 2, Passive: true, HostPolicy: "near"}}
	placement := place.Placement{Workers: map[string][]place.Assigned{"w": {{Model: ref, Groups: groups}}, "idle": nil}}
	stored := publish.Assignments{"gone": {Value: &nereidv1.AssignmentValue{}, Revision: 1}}

	writes := publish.DiffAssignments(placement, stored, 7, 3)
	want := []publish.AssignmentWrite{
		{Worker: "idle", Value: &nereidv1.AssignmentValue{Schema: 1, WorkerId: "idle", ModelsRevision: 7, LeaderEpoch: 3}},
		{Worker: "w", Value: &nereidv1.AssignmentValue{
			Schema: 1, WorkerId: "w", ModelsRevision: 7, LeaderEpoch: 3,
			Versions: []*nereidv1.AssignedVersion{{
				Model: &nereidv1.ModelRef{Name: "m", Version: 1, Generation: 5},
				Groups: []*nereidv1.AssignedGroup{{
					Name: "m_0", Kind: nereidv1.DeviceKind_DEVICE_KIND_GPU, Device: 1, Count: 2, Passive: true, HostPolicy: "near",
				}},
			}},
		}},
	}
	if diff := cmp.Diff(want, writes, protocmp.Transform()); diff != "" {
		t.Fatalf("first writes (-want +got):\n%s", diff)
	}
	for i, w := range writes {
		stored[w.Worker] = publish.Assignment{Value: w.Value, Revision: uint64(i + 2)}
	}
	if again := publish.DiffAssignments(placement, stored, 8, 3); again != nil {
		t.Errorf("a later revision of the models alone writes %v", again)
	}
	if newer := publish.DiffAssignments(placement, stored, 8, 4); len(newer) != 2 || newer[1].Replaces != 3 || newer[1].Value.GetLeaderEpoch() != 4 {
		t.Errorf("a new leader writes %v, want both", newer)
	}
}
