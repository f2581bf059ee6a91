package worker

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/worker/internal/reconcile"
)

func TestDirectoriesOfURLs(t *testing.T) {
	for text, want := range map[string]string{
		"file:///models/digits/1":   "/models/digits/1",
		"file:///my%20models/a":     "/my models/a",
		"file://host/models":        "",
		"file:models":               "",
		"models/digits":             "",
		"s3://bucket/models/digits": "",
		"":                          "",
		"%":                         "",
	} {
		got, err := pathOf(text)
		if got != want || (err == nil) == (want == "") {
			t.Errorf("%q is the directory %q, %v; want %q", text, got, err, want)
		}
		if err != nil && errs.Of(err) != errs.LoadFailed {
			t.Errorf("%q fails for %q, want load_failed", text, errs.Of(err))
		}
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
	if place := got.Versions[0].Groups[0].Place(); place != "gpu:1" {
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
