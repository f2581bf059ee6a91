package view

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

const (
	serve    = nereidv1.DesiredState_DESIRED_STATE_SERVE
	unloaded = nereidv1.DesiredState_DESIRED_STATE_UNLOADED
)

func value(maxBatch int32, versions ...*nereidv1.ModelVersion) *nereidv1.ModelValue {
	return &nereidv1.ModelValue{Schema: 1, Name: "m", Versions: versions, Config: &inference.ModelConfig{
		Name: "m", Backend: "echo", MaxBatchSize: maxBatch,
		Input:  []*inference.ModelInput{{Name: "x", DataType: inference.DataType_TYPE_FP32, Dims: []int64{4}}},
		Output: []*inference.ModelOutput{{Name: "y", DataType: inference.DataType_TYPE_FP32, Dims: []int64{4}}},
	}}
}

func version(number int64, generation uint64, desired nereidv1.DesiredState) *nereidv1.ModelVersion {
	return &nereidv1.ModelVersion{Version: number, Generation: generation, Desired: desired}
}

func reports(versions ...*nereidv1.WorkerVersion) *nereidv1.InstancesValue {
	return &nereidv1.InstancesValue{Schema: 1, Epoch: 1, Versions: versions}
}

// report sets the instances of m on a worker with a lease.
func (s *State) report(id string, v *nereidv1.InstancesValue, revision uint64) {
	s.SetWorker(id, &nereidv1.WorkerValue{Schema: 1, Epoch: 1}, revision)
	s.SetInstances(id, "m", v, revision)
}

func runs(number int64, generation uint64, state nereidv1.State, cause string) *nereidv1.WorkerVersion {
	return &nereidv1.WorkerVersion{
		Model: &nereidv1.ModelRef{Name: "m", Version: number, Generation: generation}, State: state, Cause: cause,
	}
}

// line is what a test looks at of a version.
type line struct {
	Version    int64
	Generation uint64
	State      string
	Cause      string
	MaxBatch   int64
}

func lines(t *testing.T, s *State) []line {
	t.Helper()
	models := s.Snapshot().Models()
	if len(models) != 1 {
		t.Fatalf("%d models, want 1", len(models))
	}
	var out []line
	for _, v := range models[0].Versions {
		out = append(out, line{v.Ref.Version, v.Ref.Generation, v.State.String(), v.Cause, v.Config.MaxBatchSize})
	}
	return out
}

func TestVersionStates(t *testing.T) {
	const (
		loading     = nereidv1.State_STATE_LOADING
		ready       = nereidv1.State_STATE_READY
		unloading   = nereidv1.State_STATE_UNLOADING
		unavailable = nereidv1.State_STATE_UNAVAILABLE
	)
	failed := version(1, 1, serve)
	failed.Problem = "no such file"
	tests := map[string]struct {
		version *nereidv1.ModelVersion
		workers []*nereidv1.InstancesValue
		want    line
	}{
		"no worker has it yet":      {version(1, 1, serve), nil, line{1, 1, "LOADING", "waiting for a worker", 2}},
		"a worker loads it":         {version(1, 1, serve), []*nereidv1.InstancesValue{reports(runs(1, 1, loading, ""))}, line{1, 1, "LOADING", "", 2}},
		"ready on one of two":       {version(1, 1, serve), []*nereidv1.InstancesValue{reports(runs(1, 1, unavailable, "x")), reports(runs(1, 1, ready, ""))}, line{1, 1, "READY", "", 2}},
		"failed everywhere":         {version(1, 1, serve), []*nereidv1.InstancesValue{reports(runs(1, 1, unavailable, "bad file"))}, line{1, 1, "UNAVAILABLE", "bad file", 2}},
		"failed here, loads there":  {version(1, 1, serve), []*nereidv1.InstancesValue{reports(runs(1, 1, unavailable, "x")), reports(runs(1, 1, loading, ""))}, line{1, 1, "LOADING", "", 2}},
		"the registry found it bad": {failed, nil, line{1, 1, "UNAVAILABLE", "no such file", 2}},
		"being taken out":           {version(1, 1, unloaded), []*nereidv1.InstancesValue{reports(runs(1, 1, unloading, ""))}, line{1, 1, "UNLOADING", "", 2}},
		"to be taken out":           {version(1, 1, unloaded), []*nereidv1.InstancesValue{reports(runs(1, 1, ready, ""))}, line{1, 1, "UNLOADING", "", 2}},
		"taken out":                 {version(1, 1, unloaded), nil, line{1, 1, "UNAVAILABLE", "unloaded", 2}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := NewState()
			s.SetModel("m", value(2, tt.version), 5)
			for i, w := range tt.workers {
				s.report(string(rune('a'+i)), w, 1)
			}
			if diff := cmp.Diff([]line{tt.want}, lines(t, s)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// While the number of instances changes, the configuration that serves is shown.
func TestServingConfigurationIsShownDuringAChangeInPlace(t *testing.T) {
	s := NewState()
	next := value(8, version(1, 1, serve))
	next.Previous = &nereidv1.ModelContent{Config: value(2).GetConfig(), Versions: next.GetVersions()}
	s.SetModel("m", next, 5)
	s.report("w", reports(runs(1, 1, nereidv1.State_STATE_READY, "")), 1)
	if diff := cmp.Diff([]line{{1, 1, "READY", "", 2}}, lines(t, s)); diff != "" {
		t.Error(diff)
	}
}

func TestOldContentServesUntilTheNewOneIsReady(t *testing.T) {
	const ready, loading = nereidv1.State_STATE_READY, nereidv1.State_STATE_LOADING
	s := NewState()
	s.SetModel("m", value(2, version(1, 1, serve)), 5)
	s.report("w", reports(runs(1, 1, ready, "")), 1)
	s.SetModel("m", value(8, version(1, 2, serve)), 6)
	steps := []struct {
		worker *nereidv1.InstancesValue
		want   line
	}{
		{reports(runs(1, 1, ready, "")), line{1, 1, "READY", "", 2}},
		{reports(runs(1, 1, ready, ""), runs(1, 2, loading, "")), line{1, 1, "READY", "", 2}},
		{reports(runs(1, 1, ready, ""), runs(1, 2, nereidv1.State_STATE_UNAVAILABLE, "bad")), line{1, 1, "READY", "", 2}},
		{reports(runs(1, 1, ready, ""), runs(1, 2, ready, "")), line{1, 2, "READY", "", 8}},
		{reports(runs(1, 2, ready, "")), line{1, 2, "READY", "", 8}},
	}
	for i, step := range steps {
		s.report("w", step.worker, 1)
		if diff := cmp.Diff([]line{step.want}, lines(t, s)); diff != "" {
			t.Errorf("step %d: %s", i, diff)
		}
	}
	if n := len(s.models["m"].configs); n != 1 {
		t.Errorf("%d configurations kept, want the one in use", n)
	}
}

func TestVersionsAscendAndModelsGo(t *testing.T) {
	s := NewState()
	s.SetModel("m", value(1, version(10, 1, serve), version(9, 1, serve)), 3)
	got := lines(t, s)
	if got[0].Version != 9 || got[1].Version != 10 {
		t.Errorf("order %v", got)
	}
	s.SetModel("m", nil, 4)
	if n := len(s.Snapshot().Models()); n != 0 {
		t.Errorf("%d models after the key is gone", n)
	}
	if got := s.Snapshot().Revision; got != 4 {
		t.Errorf("revision %d, want 4", got)
	}
}

func TestProblemsAreShown(t *testing.T) {
	broken := &nereidv1.ModelValue{Schema: 1, Name: "m", Problem: "config.pbtxt:3: unknown field"}
	invalid := value(-1, version(1, 1, serve))
	for name, v := range map[string]*nereidv1.ModelValue{"of the registry": broken, "of the configuration": invalid} {
		s := NewState()
		s.SetModel("m", v, 1)
		m := s.Snapshot().Models()[0]
		if m.Problem == "" || len(m.Versions) != 0 {
			t.Errorf("problem %s: %+v", name, m)
		}
	}
}

func TestSyncedFromTheWholeScanOn(t *testing.T) {
	s := NewState()
	want := func(synced bool, when string) {
		t.Helper()
		if got := s.Snapshot().Synced; got != synced {
			t.Errorf("%s: synced %t, want %t", when, got, synced)
		}
	}
	s.SetModel("m", value(1, version(1, 1, serve)), 3)
	want(false, "before the registry has scanned")
	s.SetComplete(5)
	want(false, "before revision 5 was seen")
	s.SetRevision(5)
	want(true, "at revision 5")
	s.SetComplete(0)
	want(true, "under a new leader that has not scanned")
}

// What a worker says counts while its lease is there under the same epoch,
// whichever of the two is heard first.
func TestInstancesCountWithTheirLease(t *testing.T) {
	s := NewState()
	s.SetModel("m", value(1, version(1, 1, serve)), 1)
	ready := reports(runs(1, 1, nereidv1.State_STATE_READY, ""))
	lease := func(epoch uint64) func() {
		return func() { s.SetWorker("w", &nereidv1.WorkerValue{Epoch: epoch}, 1) }
	}
	for _, step := range []struct {
		name  string
		do    func()
		ready bool
	}{
		{"instances without a lease", func() { s.SetInstances("w", "m", ready, 1) }, false},
		{"their lease", lease(1), true},
		{"the lease is lost", func() { s.SetWorker("w", nil, 2) }, false},
		{"the lease is back", lease(1), true},
		{"the lease is lost and the worker is not", func() { s.SetLeaseExpired("w", 3) }, true},
		{"another incarnation is lost", func() { s.DropExpired("w", 2) }, true},
		{"the worker is lost, too", func() { s.DropExpired("w", 1) }, false},
		{"the lease is back after all", lease(1), true},
		{"the lease is lost once more", func() { s.SetLeaseExpired("w", 3) }, true},
		{"and renewed before the worker is lost", lease(1), true},
		{"a stream of the worker ends", func() { s.DropExpired("w", 1) }, true},
		{"the lease of a later incarnation", lease(2), false},
		{"which has the instances too", func() {
			s.SetInstances("w", "m", &nereidv1.InstancesValue{Epoch: 2, Versions: ready.GetVersions()}, 3)
		}, true},
		{"the instances end", func() { s.SetInstances("w", "m", nil, 4) }, false},
		{"the lease ends", func() { s.SetWorker("w", nil, 5) }, false},
	} {
		step.do()
		if got := lines(t, s)[0].State == infer.Ready.String(); got != step.ready {
			t.Errorf("%s: ready %t", step.name, got)
		}
	}
	if len(s.workers) != 0 || len(s.runs) != 0 {
		t.Errorf("%v and %v are left", s.workers, s.runs)
	}
}

func TestClassLabelsReachTheOutputs(t *testing.T) {
	v := value(0, version(1, 1, serve))
	v.ClassLabels = map[string]*nereidv1.ClassLabels{"y": {Gzip: modelconfig.PackLabels([]string{"cat", "dog"})}}
	s := NewState()
	s.SetModel("m", v, 1)
	got := s.Snapshot().Models()[0].Versions[0].Config.Output("y").Labels
	if diff := cmp.Diff([]string{"cat", "dog"}, got); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
}

// TestPreviousContentServesUntilTheRegistrySaysSo follows a swap of all
// versions at once: version 1 changes, 2 goes and 3 comes.
func TestPreviousContentServesUntilTheRegistrySaysSo(t *testing.T) {
	const ready, loading, failed = nereidv1.State_STATE_READY, nereidv1.State_STATE_LOADING, nereidv1.State_STATE_UNAVAILABLE
	old := value(2, version(1, 1, serve), version(2, 1, serve))
	swap := value(8, version(1, 2, serve), version(3, 2, serve))
	swap.Previous = &nereidv1.ModelContent{Config: old.GetConfig(), Versions: old.GetVersions()}
	done := value(8, version(1, 2, serve), version(3, 2, serve))
	both := reports(runs(1, 1, ready, ""), runs(2, 1, ready, ""), runs(1, 2, ready, ""), runs(3, 2, ready, ""))
	steps := []struct {
		name   string
		model  *nereidv1.ModelValue
		worker *nereidv1.InstancesValue
		want   []line
	}{
		{"before", old, reports(runs(1, 1, ready, ""), runs(2, 1, ready, "")), []line{{1, 1, "READY", "", 2}, {2, 1, "READY", "", 2}}},
		{
			"one is ready", swap, reports(runs(1, 1, ready, ""), runs(2, 1, ready, ""), runs(1, 2, ready, ""), runs(3, 2, loading, "")),
			[]line{{1, 1, "READY", "", 2}, {2, 1, "READY", "", 2}, {3, 2, "LOADING", "", 8}},
		},
		{"all are ready", swap, both, []line{{1, 1, "READY", "", 2}, {2, 1, "READY", "", 2}, {3, 2, "LOADING", "", 8}}},
		{
			"one fails", swap, reports(runs(1, 1, ready, ""), runs(2, 1, ready, ""), runs(1, 2, ready, ""), runs(3, 2, failed, "bad")),
			[]line{{1, 1, "READY", "", 2}, {2, 1, "READY", "", 2}, {3, 2, "UNAVAILABLE", "bad", 8}},
		},
		{"the registry says so", done, both, []line{{1, 2, "READY", "", 8}, {3, 2, "READY", "", 8}}},
		{
			"a worker that knows only the old", done, reports(runs(1, 1, ready, ""), runs(2, 1, ready, "")),
			[]line{{1, 1, "READY", "", 2}, {3, 2, "LOADING", "waiting for a worker", 8}},
		},
	}
	s := NewState()
	for i, step := range steps {
		s.SetModel("m", step.model, uint64(i+1))
		s.report("w", step.worker, uint64(i+1))
		if diff := cmp.Diff(step.want, lines(t, s)); diff != "" {
			t.Errorf("%s: %s", step.name, diff)
		}
	}
	if workers, instances := s.Observed(); workers != uint64(len(steps)) || instances != uint64(len(steps)) {
		t.Errorf("revisions %d of the workers and %d of the instances, want %d", workers, instances, len(steps))
	}
}

func TestFailureIsShownBesideWhatServes(t *testing.T) {
	s := NewState()
	v := value(2, version(1, 1, serve))
	v.Failure = "config.pbtxt is broken"
	s.SetModel("m", v, 1)
	s.report("w", reports(runs(1, 1, nereidv1.State_STATE_READY, "")), 1)
	if diff := cmp.Diff([]line{{1, 1, "READY", "config.pbtxt is broken", 2}}, lines(t, s)); diff != "" {
		t.Error(diff)
	}
}

func TestModelThatWasNeverLoadedIsListedOnly(t *testing.T) {
	s := NewState()
	s.SetModel("m", &nereidv1.ModelValue{Schema: 1, Name: "m", Url: "file:///r/m"}, 1)
	s.SetComplete(1)
	snapshot := s.Snapshot()
	if m := snapshot.Models()[0]; m.Problem != "" || len(m.Versions) != 0 || !snapshot.AllReady() {
		t.Errorf("%+v, all ready %t", m, snapshot.AllReady())
	}
	if _, err := snapshot.Resolve("m", ""); errs.Of(err) != errs.ModelNotFound {
		t.Errorf("Resolve = %v", err)
	}
}

// A model that no repository has any more is listed nowhere, and its requests
// are refused as Triton does.
func TestRemovedModelHasNoAvailableVersion(t *testing.T) {
	s := NewState()
	v := value(0, &nereidv1.ModelVersion{Version: 1, Generation: 1, Desired: nereidv1.DesiredState_DESIRED_STATE_UNLOADED})
	v.Removed = true
	s.SetModel("m", v, 1)
	s.SetComplete(1)
	snapshot := s.Snapshot()
	if !snapshot.Models()[0].Removed || !snapshot.AllReady() {
		t.Errorf("%+v, all ready %t", snapshot.Models()[0], snapshot.AllReady())
	}
	for version, text := range map[string]string{
		"":  "Request for unknown model: 'm' has no available versions",
		"1": "Request for unknown model: 'm' version 1 is not at ready state",
		"2": "Request for unknown model: 'm' version 2 is not found",
	} {
		if _, err := snapshot.Resolve("m", version); err == nil || err.Error() != text {
			t.Errorf("version %q: %v", version, err)
		}
	}
}

func TestVersionsAreAwayWithAllInstances(t *testing.T) {
	ready, away := &nereidv1.WorkerInstance{State: nereidv1.State_STATE_READY}, &nereidv1.WorkerInstance{State: nereidv1.State_STATE_UNAVAILABLE, Cause: "dead"}
	s := NewState()
	s.SetModel("m", value(1, version(1, 1, serve)), 1)
	for i, step := range []struct {
		worker    string
		instances []*nereidv1.WorkerInstance
		want      string
	}{
		{"a", []*nereidv1.WorkerInstance{ready, ready}, ""},
		{"a", []*nereidv1.WorkerInstance{ready, away}, ""},
		{"a", []*nereidv1.WorkerInstance{away, away}, "dead"},
		{"b", []*nereidv1.WorkerInstance{away}, "dead"},
		{"b", []*nereidv1.WorkerInstance{ready}, ""},
	} {
		v := runs(1, 1, nereidv1.State_STATE_READY, "")
		v.Instances = step.instances
		s.report(step.worker, reports(v), uint64(i)+1)
		if got := s.Snapshot().Models()[0].Versions[0]; got.Away != step.want || got.State != infer.Ready {
			t.Errorf("step %d: %v, away: %q, want %q", i, got.State, got.Away, step.want)
		}
	}
}
