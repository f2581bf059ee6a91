package rollout_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core/rollout"
)

const (
	loading     = nereidv1.State_STATE_LOADING
	ready       = nereidv1.State_STATE_READY
	unavailable = nereidv1.State_STATE_UNAVAILABLE
	none        = nereidv1.State_STATE_UNSPECIFIED
)

func ref(version int64) *nereidv1.ModelRef {
	return &nereidv1.ModelRef{Name: "m", Version: version, Generation: 7}
}

// observe makes workers that should run the versions 1 and 2, and their states
// of each.
func observe(states ...[2]nereidv1.State) rollout.Workers {
	w := rollout.NewWorkers()
	for _, pair := range states {
		should, says := new(nereidv1.AssignmentValue), new(nereidv1.InstancesValue)
		for n, state := range pair {
			m := ref(int64(n + 1))
			should.Versions = append(should.Versions, &nereidv1.AssignedVersion{Model: m})
			if state != none {
				said := &nereidv1.WorkerVersion{Model: m, State: state}
				if state != ready {
					said.Cause = "cause"
				}
				says.Versions = append(says.Versions, said)
			}
		}
		w.Add(should, says)
	}
	return w
}

func TestJudge(t *testing.T) {
	tests := map[string]struct {
		workers []([2]nereidv1.State)
		problem string
		want    rollout.Progress
		causes  map[int64]string
	}{
		"no worker":                         {nil, "", rollout.Pending, nil},
		"nothing said yet":                  {[][2]nereidv1.State{{none, none}}, "", rollout.Pending, nil},
		"one of two loads":                  {[][2]nereidv1.State{{ready, loading}}, "", rollout.Pending, nil},
		"all ready":                         {[][2]nereidv1.State{{ready, ready}, {ready, ready}}, "", rollout.Ready, nil},
		"one worker loads":                  {[][2]nereidv1.State{{ready, ready}, {ready, loading}}, "", rollout.Pending, nil},
		"one failed":                        {[][2]nereidv1.State{{ready, unavailable}}, "", rollout.Failed, map[int64]string{2: "cause"}},
		"failed on one worker":              {[][2]nereidv1.State{{ready, ready}, {unavailable, ready}}, "", rollout.Failed, map[int64]string{1: "cause"}},
		"failed here, loads there":          {[][2]nereidv1.State{{unavailable, ready}, {loading, ready}}, "", rollout.Pending, nil},
		"one failed while the other loads":  {[][2]nereidv1.State{{unavailable, loading}}, "", rollout.Pending, map[int64]string{1: "cause"}},
		"the registry found version 1 bad":  {[][2]nereidv1.State{{none, ready}}, "no GPU", rollout.Failed, map[int64]string{1: "no GPU"}},
		"a failure while the other is open": {[][2]nereidv1.State{{none, none}}, "no GPU", rollout.Pending, map[int64]string{1: "no GPU"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			v := &nereidv1.ModelValue{Name: "m", Versions: []*nereidv1.ModelVersion{
				{Version: 1, Generation: 7, Desired: nereidv1.DesiredState_DESIRED_STATE_SERVE, Problem: tt.problem},
				{Version: 2, Generation: 7, Desired: nereidv1.DesiredState_DESIRED_STATE_SERVE},
				{Version: 3, Generation: 7, Desired: nereidv1.DesiredState_DESIRED_STATE_UNLOADED},
			}}
			progress, causes := observe(tt.workers...).Evaluate(v)
			if tt.causes == nil {
				tt.causes = map[int64]string{}
			}
			if diff := cmp.Diff(tt.causes, causes); progress != tt.want || diff != "" {
				t.Errorf("progress %d, want %d; causes %s", progress, tt.want, diff)
			}
		})
	}
}

// A content that is ready is judged by the instances that it should have.
func TestJudgeInstances(t *testing.T) {
	groups := func(count uint32) []*nereidv1.AssignedGroup {
		return []*nereidv1.AssignedGroup{{Name: "g", Count: count, HostPolicy: "cpu"}}
	}
	for name, tt := range map[string]struct {
		said   []*nereidv1.AssignedGroup
		cause  string
		want   rollout.Progress
		causes map[int64]string
	}{
		"as asked for":               {groups(3), "", rollout.Ready, map[int64]string{}},
		"not there yet":              {groups(2), "", rollout.Pending, map[int64]string{}},
		"being made":                 {nil, "", rollout.Pending, map[int64]string{}},
		"cannot be made":             {groups(3), "no room", rollout.Failed, map[int64]string{1: "no room"}},
		"others could not be made":   {groups(4), "no room", rollout.Pending, map[int64]string{}},
		"a failure while being made": {nil, "no room", rollout.Pending, map[int64]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			w := rollout.NewWorkers()
			w.Add(
				&nereidv1.AssignmentValue{Versions: []*nereidv1.AssignedVersion{{Model: ref(1), Groups: groups(3)}}},
				&nereidv1.InstancesValue{Versions: []*nereidv1.WorkerVersion{{Model: ref(1), State: ready, Cause: tt.cause, Groups: tt.said}}},
			)
			progress, causes := w.Evaluate(&nereidv1.ModelValue{Name: "m", Versions: []*nereidv1.ModelVersion{
				{Version: 1, Generation: 7, Desired: nereidv1.DesiredState_DESIRED_STATE_SERVE},
			}})
			if diff := cmp.Diff(tt.causes, causes); progress != tt.want || diff != "" {
				t.Errorf("progress %d, want %d; causes %s", progress, tt.want, diff)
			}
			if w.Failed(infer.ModelRef{Name: "m", Version: 1, Generation: 7}) {
				t.Error("what serves with other instances counts as failed")
			}
		})
	}
}

func TestFailedEverywhere(t *testing.T) {
	one := infer.ModelRef{Name: "m", Version: 1, Generation: 7}
	for _, tt := range []struct {
		workers []([2]nereidv1.State)
		want    bool
	}{
		{nil, false},
		{[][2]nereidv1.State{{unavailable, ready}}, true},
		{[][2]nereidv1.State{{unavailable, ready}, {loading, ready}}, false},
	} {
		if got := observe(tt.workers...).Failed(one); got != tt.want {
			t.Errorf("%v: failed %t, want %t", tt.workers, got, tt.want)
		}
	}
}

// says is what a worker reports of version 1.
func says(state nereidv1.State, reason errs.Reason) *nereidv1.InstancesValue {
	v := &nereidv1.WorkerVersion{Model: ref(1), State: state, Reason: string(reason)}
	if state != ready {
		v.Cause = "cause"
	}
	return &nereidv1.InstancesValue{Versions: []*nereidv1.WorkerVersion{v}}
}

func TestFailuresThatMayPass(t *testing.T) {
	one := infer.ModelRef{Name: "m", Version: 1, Generation: 7}
	for name, tt := range map[string]struct {
		workers []*nereidv1.InstancesValue
		// passing is of the value in which it is to serve, stale of the version that no worker has
		passing, stale, changed bool
	}{
		"nobody has it":                 {nil, true, false, false},
		"other files":                   {[]*nereidv1.InstancesValue{says(unavailable, errs.FilesChanged)}, true, true, true},
		"a bad file":                    {[]*nereidv1.InstancesValue{says(unavailable, errs.LoadFailed)}, false, false, false},
		"no reason":                     {[]*nereidv1.InstancesValue{says(unavailable, "")}, false, false, false},
		"a bad file, and other files":   {[]*nereidv1.InstancesValue{says(unavailable, errs.LoadFailed), says(unavailable, errs.FilesChanged)}, true, true, true},
		"a bad file, and a full disk":   {[]*nereidv1.InstancesValue{says(unavailable, errs.LoadFailed), says(unavailable, errs.CacheFull)}, false, false, false},
		"a full disk, and a full GPU":   {[]*nereidv1.InstancesValue{says(unavailable, errs.CacheFull), says(unavailable, errs.DeviceMemory)}, true, true, false},
		"a full disk, ready on another": {[]*nereidv1.InstancesValue{says(ready, ""), says(unavailable, errs.CacheFull)}, true, false, false},
		"bad, ready on another":         {[]*nereidv1.InstancesValue{says(ready, ""), says(unavailable, errs.LoadFailed)}, false, false, false},
		"other files on one":            {[]*nereidv1.InstancesValue{says(ready, ""), says(unavailable, errs.FilesChanged)}, true, false, false},
		"no store":                      {[]*nereidv1.InstancesValue{says(unavailable, errs.StoreUnreachable)}, true, true, false},
		"a store that denies":           {[]*nereidv1.InstancesValue{says(unavailable, errs.StoreDenied)}, true, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			all := rollout.NewWorkers()
			for _, w := range tt.workers {
				all.Add(&nereidv1.AssignmentValue{Versions: []*nereidv1.AssignedVersion{{Model: ref(1)}}}, w)
			}
			v := value(7, "digest")
			v.Versions[0].Desired = nereidv1.DesiredState_DESIRED_STATE_SERVE
			if got := all.Passing(v); got != tt.passing {
				t.Errorf("passing %t, want %t", got, tt.passing)
			}
			if got := all.Stale(one); got != tt.stale {
				t.Errorf("stale %t, want %t", got, tt.stale)
			}
			if got := all.FilesChanged(one); got != tt.changed {
				t.Errorf("files changed %t, want %t", got, tt.changed)
			}
		})
	}
}

// A version that has no place waits for one; one that could not be read waits for other files.
func TestProblemsThatMayPass(t *testing.T) {
	v := value(7, "digest")
	v.Versions[0].Desired, v.Versions[0].Problem = nereidv1.DesiredState_DESIRED_STATE_SERVE, "no worker has the memory"
	if !rollout.NewWorkers().Passing(v) {
		t.Error("the want of a place does not pass")
	}
	v.Versions[0].Digest = ""
	if rollout.NewWorkers().Passing(v) {
		t.Error("files that could not be read pass")
	}
	v.Versions[0].Desired = nereidv1.DesiredState_DESIRED_STATE_UNLOADED
	if !rollout.NewWorkers().Passing(v) {
		t.Error("a version that is not to serve decides")
	}
}

func TestFailureNamesEveryVersion(t *testing.T) {
	want := "load failed for model 'm': version 1 is at UNAVAILABLE state: a; version 20 is at UNAVAILABLE state: b;"
	if got := rollout.Failure(infer.ModelID{Name: "m"}, map[int64]string{20: "b", 1: "a"}); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
