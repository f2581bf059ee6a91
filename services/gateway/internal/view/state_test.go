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

func worker(versions ...*nereidv1.WorkerVersion) *nereidv1.WorkerValue {
	return &nereidv1.WorkerValue{Schema: 1, Versions: versions}
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
		workers []*nereidv1.WorkerValue
		want    line
	}{
		"no worker has it yet":      {version(1, 1, serve), nil, line{1, 1, "LOADING", "waits for a worker", 2}},
		"a worker loads it":         {version(1, 1, serve), []*nereidv1.WorkerValue{worker(runs(1, 1, loading, ""))}, line{1, 1, "LOADING", "", 2}},
		"ready on one of two":       {version(1, 1, serve), []*nereidv1.WorkerValue{worker(runs(1, 1, unavailable, "x")), worker(runs(1, 1, ready, ""))}, line{1, 1, "READY", "", 2}},
		"failed everywhere":         {version(1, 1, serve), []*nereidv1.WorkerValue{worker(runs(1, 1, unavailable, "bad file"))}, line{1, 1, "UNAVAILABLE", "bad file", 2}},
		"failed here, loads there":  {version(1, 1, serve), []*nereidv1.WorkerValue{worker(runs(1, 1, unavailable, "x")), worker(runs(1, 1, loading, ""))}, line{1, 1, "LOADING", "", 2}},
		"the registry found it bad": {failed, nil, line{1, 1, "UNAVAILABLE", "no such file", 2}},
		"being taken out":           {version(1, 1, unloaded), []*nereidv1.WorkerValue{worker(runs(1, 1, unloading, ""))}, line{1, 1, "UNLOADING", "", 2}},
		"to be taken out":           {version(1, 1, unloaded), []*nereidv1.WorkerValue{worker(runs(1, 1, ready, ""))}, line{1, 1, "UNLOADING", "", 2}},
		"taken out":                 {version(1, 1, unloaded), nil, line{1, 1, "UNAVAILABLE", "unloaded", 2}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := NewState()
			s.SetModel("m", value(2, tt.version), 5)
			for i, w := range tt.workers {
				s.SetWorker(string(rune('a'+i)), w, 1)
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
	s.SetWorker("w", worker(runs(1, 1, nereidv1.State_STATE_READY, "")), 1)
	if diff := cmp.Diff([]line{{1, 1, "READY", "", 2}}, lines(t, s)); diff != "" {
		t.Error(diff)
	}
}

func TestOldContentServesUntilTheNewOneIsReady(t *testing.T) {
	const ready, loading = nereidv1.State_STATE_READY, nereidv1.State_STATE_LOADING
	s := NewState()
	s.SetModel("m", value(2, version(1, 1, serve)), 5)
	s.SetWorker("w", worker(runs(1, 1, ready, "")), 1)
	s.SetModel("m", value(8, version(1, 2, serve)), 6)
	steps := []struct {
		worker *nereidv1.WorkerValue
		want   line
	}{
		{worker(runs(1, 1, ready, "")), line{1, 1, "READY", "", 2}},
		{worker(runs(1, 1, ready, ""), runs(1, 2, loading, "")), line{1, 1, "READY", "", 2}},
		{worker(runs(1, 1, ready, ""), runs(1, 2, nereidv1.State_STATE_UNAVAILABLE, "bad")), line{1, 1, "READY", "", 2}},
		{worker(runs(1, 1, ready, ""), runs(1, 2, ready, "")), line{1, 2, "READY", "", 8}},
		{worker(runs(1, 2, ready, "")), line{1, 2, "READY", "", 8}},
	}
	for i, step := range steps {
		s.SetWorker("w", step.worker, 1)
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

func TestWorkersGo(t *testing.T) {
	s := NewState()
	s.SetModel("m", value(1, version(1, 1, serve)), 1)
	s.SetWorker("w", worker(runs(1, 1, nereidv1.State_STATE_READY, "")), 1)
	s.SetWorker("w", nil, 1)
	if got := lines(t, s)[0].State; got == infer.Ready.String() {
		t.Error("ready without a worker")
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
	both := worker(runs(1, 1, ready, ""), runs(2, 1, ready, ""), runs(1, 2, ready, ""), runs(3, 2, ready, ""))
	steps := []struct {
		name   string
		model  *nereidv1.ModelValue
		worker *nereidv1.WorkerValue
		want   []line
	}{
		{"before", old, worker(runs(1, 1, ready, ""), runs(2, 1, ready, "")), []line{{1, 1, "READY", "", 2}, {2, 1, "READY", "", 2}}},
		{
			"one is ready", swap, worker(runs(1, 1, ready, ""), runs(2, 1, ready, ""), runs(1, 2, ready, ""), runs(3, 2, loading, "")),
			[]line{{1, 1, "READY", "", 2}, {2, 1, "READY", "", 2}, {3, 2, "LOADING", "", 8}},
		},
		{"all are ready", swap, both, []line{{1, 1, "READY", "", 2}, {2, 1, "READY", "", 2}, {3, 2, "LOADING", "", 8}}},
		{
			"one fails", swap, worker(runs(1, 1, ready, ""), runs(2, 1, ready, ""), runs(1, 2, ready, ""), runs(3, 2, failed, "bad")),
			[]line{{1, 1, "READY", "", 2}, {2, 1, "READY", "", 2}, {3, 2, "UNAVAILABLE", "bad", 8}},
		},
		{"the registry says so", done, both, []line{{1, 2, "READY", "", 8}, {3, 2, "READY", "", 8}}},
		{
			"a worker that knows only the old", done, worker(runs(1, 1, ready, ""), runs(2, 1, ready, "")),
			[]line{{1, 1, "READY", "", 2}, {3, 2, "LOADING", "waits for a worker", 8}},
		},
	}
	s := NewState()
	for i, step := range steps {
		s.SetModel("m", step.model, uint64(i+1))
		s.SetWorker("w", step.worker, uint64(i+1))
		if diff := cmp.Diff(step.want, lines(t, s)); diff != "" {
			t.Errorf("%s: %s", step.name, diff)
		}
	}
	if got := s.WorkersRevision(); got != uint64(len(steps)) {
		t.Errorf("workers' revision %d, want %d", got, len(steps))
	}
}

func TestFailureIsShownBesideWhatServes(t *testing.T) {
	s := NewState()
	v := value(2, version(1, 1, serve))
	v.Failure = "config.pbtxt is broken"
	s.SetModel("m", v, 1)
	s.SetWorker("w", worker(runs(1, 1, nereidv1.State_STATE_READY, "")), 1)
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
