package worker

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/worker/internal/reconcile"
)

// A value that names two generations of a version is both: the one that serves can be loaded
// again as long as the other is not ready.
func TestVersionsOf(t *testing.T) {
	config := &inference.ModelConfig{
		Name: "m", Backend: "echo",
		Input:  []*inference.ModelInput{{Name: "x", DataType: inference.DataType_TYPE_INT8, Dims: []int64{4}}},
		Output: []*inference.ModelOutput{{Name: "y", DataType: inference.DataType_TYPE_INT8, Dims: []int64{4}}},
	}
	before := proto.CloneOf(config)
	before.MaxBatchSize = 4
	version := func(number int64, generation uint64, problem string) *nereidv1.ModelVersion {
		return &nereidv1.ModelVersion{
			Version: number, Generation: generation, Desired: nereidv1.DesiredState_DESIRED_STATE_SERVE, Problem: problem,
			Url: "file:///m/1", Digest: "sha256:1", Fingerprint: "stat:1",
		}
	}
	got := versionsOf(&nereidv1.ModelValue{
		Name: "m", Config: config, Url: "file:///m", Versions: []*nereidv1.ModelVersion{version(1, 2, ""), version(2, 1, ""), version(3, 2, "bad")},
		Previous: &nereidv1.ModelContent{Config: before, Url: "file:///old", Versions: []*nereidv1.ModelVersion{version(1, 1, ""), version(2, 1, "")}},
	})
	var lines []string
	for _, c := range got {
		lines = append(lines, fmt.Sprintf("%v max %d from %s %s %s: %v", c.Ref, c.Config.MaxBatchSize, c.Files.ModelURL, c.Files.Digest, c.Files.Fingerprint, c.Err != nil))
	}
	want := []string{
		"m/1@2 max 0 from file:///m sha256:1 stat:1: false",
		"m/2@1 max 0 from file:///m sha256:1 stat:1: false",
		"m/3@2 max 0 from file:///m sha256:1 stat:1: true",
		"m/1@1 max 4 from file:///old sha256:1 stat:1: false",
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Error(diff)
	}
}

func TestAssignmentOf(t *testing.T) {
	v := &nereidv1.AssignmentValue{
		ModelsRevision: 4, LeaderEpoch: 2,
		Versions: []*nereidv1.AssignedVersion{{
			Model: &nereidv1.ModelRef{Name: "m", Version: 1, Generation: 3},
			Groups: []*nereidv1.AssignedGroup{
				{Name: "m_0", Kind: nereidv1.DeviceKind_DEVICE_KIND_GPU, Device: 1, Count: 2, Passive: true},
				{Name: "m_1", Count: 1},
			},
		}},
	}
	want := reconcile.Assignment{
		ModelsRevision: 4, LeaderEpoch: 2, Revision: 9,
		Versions: []reconcile.Assigned{{
			Ref: infer.ModelRef{Name: "m", Version: 1, Generation: 3},
			Groups: []reconcile.Group{
				{Name: "m_0", Kind: modelconfig.KindGPU, Device: 1, Count: 2, Passive: true},
				{Name: "m_1", Kind: modelconfig.KindCPU, Count: 1},
			},
		}},
	}
	got := assignmentOf(v, 9)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if place := got.Versions[0].Groups[0].DeviceName(); place != "gpu:1" {
		t.Errorf("the first group is on %q, want gpu:1", place)
	}
	v.Versions[0].Groups[1].Count = maxInstances + 1
	if err := assignmentOf(v, 9).Versions[0].Err; errs.Of(err) != errs.LoadFailed {
		t.Errorf("%d instances are refused with %v, want load_failed", maxInstances+1, err)
	}
}

// The registry compares what it assigned with what it is told.
func TestGroupsComeBackAsTheyWereAssigned(t *testing.T) {
	want := []*nereidv1.AssignedGroup{
		{Name: "m_0", Kind: nereidv1.DeviceKind_DEVICE_KIND_GPU, Device: 1, Count: 2, Passive: true, HostPolicy: "gpu_1"},
		{Name: "m_1", Kind: nereidv1.DeviceKind_DEVICE_KIND_CPU, Count: 1, HostPolicy: "cpu"},
		{Name: "m_2", Kind: nereidv1.DeviceKind_DEVICE_KIND_MODEL, Count: 1},
	}
	a := assignmentOf(&nereidv1.AssignmentValue{Versions: []*nereidv1.AssignedVersion{{Groups: want}}}, 1)
	got := versionValue(reconcile.VersionStatus{Groups: a.Versions[0].Groups}).GetGroups()
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

// Every state of the reconciler has its word in the bucket.
func TestVersionValue(t *testing.T) {
	for state := infer.Loading; state <= infer.Unavailable; state++ {
		v := versionValue(reconcile.VersionStatus{State: state, Instances: []reconcile.InstanceStatus{{Slot: 1}}})
		if want := "STATE_" + state.String(); v.GetState().String() != want || v.GetInstances()[0].GetState() != v.GetState() {
			t.Errorf("%v is published as %v", state, v)
		}
	}
}

func TestNewNeedsItsDeps(t *testing.T) {
	if _, err := New(Default(), Deps{}); errs.Of(err) != errs.Bug {
		t.Errorf("New without deps = %v, want bug", err)
	}
}
