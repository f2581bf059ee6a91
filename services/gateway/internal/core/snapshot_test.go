package core_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/requests"
)

// states is a model with a version in every state, the highest not ready.
func states() *core.Model {
	return &core.Model{Name: "m", Versions: []*core.Version{
		version("m", 1, infer.Unknown), version("m", 2, infer.Ready), version("m", 3, infer.Unloading),
		version("m", 5, infer.Ready), version("m", 7, infer.Loading), version("m", 11, infer.Unavailable),
	}}
}

func TestResolveFindsOrSaysWhyNot(t *testing.T) {
	h := newGateway(t,
		states(),
		&core.Model{Name: "gone", Versions: []*core.Version{version("gone", 1, infer.Unavailable)}},
		&core.Model{Name: "empty", Problem: "no version", LoadFailed: true},
		&core.Model{Name: "unread", Problem: "bad config"},
	)
	const integral = ", version should be an integral value > 0"
	for _, c := range []struct {
		name, model, version string
		want                 int64
		refusal              refusal
		ready                bool // what ModelReady returns; its only error is InvalidVersion
	}{
		{name: "the highest ready version", model: "m", want: 5, ready: true},
		{name: "a version", model: "m", version: "2", want: 2, ready: true},
		{name: "a version with zeros", model: "m", version: "002", want: 2, ready: true},
		{name: "an unknown model", model: "x", refusal: refusal{errs.ModelNotFound, "Request for unknown model: 'x' is not found"}},
		{name: "an unknown model with a version", model: "x", version: "1", refusal: refusal{errs.ModelNotFound, "Request for unknown model: 'x' is not found"}},
		{name: "no name", refusal: refusal{errs.ModelNotFound, "Request for unknown model: '' is not found"}},
		{name: "an unknown version", model: "m", version: "4", refusal: refusal{errs.ModelNotFound, "Request for unknown model: 'm' version 4 is not found"}},
		{name: "an unknown state", model: "m", version: "1", refusal: refusal{errs.ModelNotReady, "Request for unknown model: 'm' version 1 is not at ready state"}},
		{name: "unloading", model: "m", version: "3", refusal: refusal{errs.ModelNotReady, "Request for unknown model: 'm' version 3 is not at ready state"}},
		{name: "loading", model: "m", version: "7", refusal: refusal{errs.ModelNotReady, "Request for unknown model: 'm' version 7 is not at ready state"}},
		{name: "failed", model: "m", version: "11", refusal: refusal{errs.ModelNotReady, "Request for unknown model: 'm' version 11 is not at ready state"}},
		{name: "no ready version", model: "gone", refusal: refusal{errs.ModelNotFound, "Request for unknown model: 'gone' has no available versions"}},
		{name: "no version at all", model: "empty", refusal: refusal{errs.ModelNotFound, "Request for unknown model: 'empty' has no available versions"}},
		{name: "a version of a model without any", model: "empty", version: "1", refusal: refusal{errs.ModelNotFound, "Request for unknown model: 'empty' version 1 is not found"}},
		{name: "a model that could not be polled", model: "unread", refusal: refusal{errs.ModelNotFound, "Request for unknown model: 'unread' is not found"}},
		{name: "a version of one that could not be polled", model: "unread", version: "1", refusal: refusal{errs.ModelNotFound, "Request for unknown model: 'unread' is not found"}},
		{name: "a word", model: "m", version: "one", refusal: refusal{errs.InvalidVersion, "failed to get model version from specified version string 'one' (details: stol)" + integral}},
		{name: "too large a number", model: "m", version: "9223372036854775808", refusal: refusal{errs.InvalidVersion, "failed to get model version from specified version string '9223372036854775808' (details: stol)" + integral}},
		{name: "version 0", model: "m", version: "0", refusal: refusal{errs.ModelNotFound, "Request for unknown model: 'm' version 0 is not found"}},
		{name: "a negative version of an unknown model", model: "x", version: "-1", refusal: refusal{errs.InvalidVersion, "invalid model version specified '-1' " + integral}},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, err := h.Snapshot().Resolve(c.model, c.version)
			if d := cmp.Diff(c.refusal, refusalOf(err)); d != "" {
				t.Error(d)
			}
			if err == nil && v.Ref.Version != c.want {
				t.Errorf("got version %d, want %d", v.Ref.Version, c.want)
			}
			isReady, err := h.ModelReady(c.model, c.version)
			if isReady != c.ready || (err != nil) != (c.refusal.Reason == errs.InvalidVersion) {
				t.Errorf("ModelReady: %t, %v", isReady, err)
			}
		})
	}
}

func TestServerIsReadyWhenAllThatShouldServeDoes(t *testing.T) {
	unloaded := version("m", 3, infer.Unavailable)
	unloaded.Cause = core.CauseUnloaded
	failed := version("m", 3, infer.Unavailable)
	failed.Cause = "out of memory"
	one := func(versions ...*core.Version) []*core.Model { return []*core.Model{{Name: "m", Versions: versions}} }
	for _, c := range []struct {
		name   string
		synced bool
		models []*core.Model
		want   bool
	}{
		{"an empty repository", true, nil, true},
		{"a repository that has not been seen", false, nil, false},
		{"everything ready", true, one(version("m", 1, infer.Ready), version("m", 2, infer.Ready)), true},
		{"everything ready before the first scan is over", false, one(version("m", 1, infer.Ready)), false},
		{"one version loads", true, one(version("m", 1, infer.Ready), version("m", 2, infer.Loading)), false},
		{"one version failed", true, one(version("m", 1, infer.Ready), failed), false},
		{"one version was taken out", true, one(version("m", 1, infer.Ready), unloaded), true},
		{"one model is broken", true, append(one(version("m", 1, infer.Ready)), &core.Model{Name: "b", Problem: "bad config"}), true},
		{"one model failed to load", true, append(one(version("m", 1, infer.Ready)), &core.Model{Name: "b", Problem: "bad file", LoadFailed: true}), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := core.NewSnapshot(1, c.synced, c.models).AllReady(); got != c.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

func TestChangesAreWhatScriptsWaitFor(t *testing.T) {
	snapshot := func(versions ...*core.Version) *core.Snapshot {
		return core.NewSnapshot(1, true, []*core.Model{{Name: "m", Versions: versions}})
	}
	again := version("m", 1, infer.Ready)
	again.Ref.Generation++
	unloaded := version("m", 1, infer.Unavailable)
	unloaded.Cause = core.CauseUnloaded
	failed := version("m", 1, infer.Unavailable)
	failed.Cause = "bad file"
	for name, tt := range map[string]struct {
		before, after    *core.Snapshot
		loaded, unloaded int
	}{
		"a load that begins":      {core.NewSnapshot(0, false, nil), snapshot(version("m", 1, infer.Loading)), 0, 0},
		"a load that succeeds":    {snapshot(version("m", 1, infer.Loading)), snapshot(version("m", 1, infer.Ready)), 1, 0},
		"a load that fails":       {snapshot(version("m", 1, infer.Loading)), snapshot(failed), 0, 0},
		"nothing":                 {snapshot(version("m", 1, infer.Ready)), snapshot(version("m", 1, infer.Ready)), 0, 0},
		"a reload":                {snapshot(version("m", 1, infer.Ready)), snapshot(again), 1, 0},
		"another version":         {snapshot(version("m", 1, infer.Ready)), snapshot(version("m", 1, infer.Ready), version("m", 2, infer.Ready)), 1, 0},
		"an unload that begins":   {snapshot(version("m", 1, infer.Ready)), snapshot(version("m", 1, infer.Unloading)), 0, 0},
		"an unload that ends":     {snapshot(version("m", 1, infer.Unloading)), snapshot(unloaded), 0, 1},
		"what was unloaded stays": {snapshot(unloaded), snapshot(unloaded), 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			loaded, unloaded := tt.after.Changes(tt.before)
			if len(loaded) != tt.loaded || len(unloaded) != tt.unloaded {
				t.Errorf("loaded %v, unloaded %v, want %d and %d", loaded, unloaded, tt.loaded, tt.unloaded)
			}
		})
	}
}

// Models whose pool has no scheduler are not ready, whatever the workers report.
func TestModelsOfAPoolWithoutASchedulerAreNotReady(t *testing.T) {
	in := func(pool string) *core.Model {
		v := version(pool, 1, infer.Ready)
		v.Pool = pool
		return &core.Model{Name: pool, Versions: []*core.Version{v}}
	}
	for _, c := range []struct {
		name    string
		strict  bool
		reached string
		want    bool
	}{
		{name: "no pool", strict: true},
		{name: "no pool, not strict"},
		{name: "one of two", strict: true, reached: "a"},
		{name: "one of two, not strict", reached: "a", want: true},
		{name: "both", strict: true, reached: "ab", want: true},
		{name: "both, not strict", reached: "ab", want: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			reaches := func(pool string) bool { return strings.Contains(c.reached, pool) }
			h := core.New(core.ServerInfo{}, core.Deps{Requests: requests.New(1), StrictReadiness: c.strict, Reachable: reaches})
			h.Update(core.NewSnapshot(1, true, []*core.Model{in("a"), in("b")}))
			if got := h.Ready(); got != c.want || h.Started() != c.want {
				t.Errorf("ready: %t, started: %t", got, h.Started())
			}
			listed := h.Index(true)
			for _, e := range h.Index(false) {
				ready, err := h.ModelReady(e.Name, "")
				if want := reaches(e.Name); err != nil || ready != want || (e.State == "READY") != want || slices.Contains(listed, e) != want || (e.Reason == "") != want {
					t.Errorf("%+v, ready %t, %v", e, ready, err)
				}
			}
		})
	}
}

func TestNewGatewayIsLiveAndNotReady(t *testing.T) {
	h := core.New(core.ServerInfo{}, core.Deps{Requests: requests.New(1)})
	h.Update(core.NewSnapshot(6, false, nil))
	if !h.Live() || h.Ready() {
		t.Error("without a scan: live and not ready")
	}
	h.Update(core.NewSnapshot(7, true, nil))
	if !h.Live() || !h.Ready() {
		t.Error("with an empty snapshot that is synced: live and ready")
	}
	h.Update(core.NewSnapshot(8, true, []*core.Model{{Name: "m", Versions: []*core.Version{{State: infer.Loading}}}}))
	if !h.Ready() {
		t.Error("not ready for a load after the start, without strict readiness")
	}
}

func TestMetadataIsWhatClientsSee(t *testing.T) {
	m := states()
	for _, v := range m.Versions {
		v.Config.Platform = "onnxruntime_onnx"
		v.Config.MaxBatchSize = 4
		reshaped := io("IN", tensor.FP32, 2, -1)
		reshaped.HasReshape, reshaped.Reshape = true, tensor.Shape{-1}
		v.Config.Inputs = []modelconfig.IO{reshaped}
		v.Config.Outputs = []modelconfig.IO{io("OUT", tensor.Bytes, 1)}
	}
	plain := ready("plain", &modelconfig.Config{Backend: "python", Inputs: []modelconfig.IO{io("IN", tensor.BF16)}})
	h := newGateway(t, m, &core.Model{Name: "plain", Versions: []*core.Version{plain}})
	want := core.Metadata{
		Name: "m", Versions: []string{"2", "5"}, Platform: "onnxruntime_onnx",
		Inputs:  []core.TensorMetadata{{Name: "IN", Datatype: "FP32", Shape: []int64{-1, 2, -1}}},
		Outputs: []core.TensorMetadata{{Name: "OUT", Datatype: "BYTES", Shape: []int64{-1, 1}}},
	}
	got, err := h.Metadata("m", "")
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Errorf("all versions: %v %s", err, d)
	}
	want.Versions = []string{"2"}
	got, err = h.Metadata("m", "2")
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Errorf("one version: %v %s", err, d)
	}
	want = core.Metadata{
		Name: "plain", Versions: []string{"1"}, Platform: "python",
		Inputs: []core.TensorMetadata{{Name: "IN", Datatype: "BF16"}}, Outputs: []core.TensorMetadata{},
	}
	got, err = h.Metadata("plain", "")
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Errorf("a model without batches: %v %s", err, d)
	}
	if _, err := h.Metadata("m", "7"); errs.Of(err) != errs.ModelNotReady {
		t.Errorf("a version that is not ready: %v", err)
	}
	if d := cmp.Diff(core.ServerInfo{Name: "nereid", Version: "1", Extensions: []string{"e"}}, h.Server()); d != "" {
		t.Error(d)
	}
}

func TestNamesOfSeveralModelsMeanTheOneThatIsLoaded(t *testing.T) {
	of := func(namespace string, state infer.InstanceState, cause string) *core.Model {
		v := version("m", 1, state)
		v.Ref.Namespace, v.Cause = namespace, cause
		return &core.Model{Namespace: namespace, Name: "m", Versions: []*core.Version{v}}
	}
	ready, failed := of("/a", infer.Ready, ""), of("/b", infer.Unavailable, "no such file")
	unloaded, unloading, other := of("/c", infer.Unavailable, core.CauseUnloaded), of("/d", infer.Unloading, ""), of("/e", infer.Ready, "")
	listed := &core.Model{Namespace: "/f", Name: "m"}
	const two = "There are 2 identifiers of model 'm' in global map, model namespace must be provided to resolve ambiguity."
	for name, tt := range map[string]struct {
		models    []*core.Model
		namespace string
		refusal   refusal
	}{
		"one is loaded":        {[]*core.Model{unloaded, ready, unloading, listed}, "/a", refusal{}},
		"the first was":        {[]*core.Model{unloaded, unloading, other}, "/e", refusal{}},
		"two are loaded":       {[]*core.Model{unloaded, ready, other}, "", refusal{errs.ModelAmbiguous, two}},
		"one of two failed":    {[]*core.Model{ready, failed, listed}, "", refusal{errs.ModelAmbiguous, two}},
		"all were unloaded":    {[]*core.Model{unloaded, unloading}, "", refusal{errs.ModelNotFound, "Request for unknown model: '/c::m' has no available versions"}},
		"none was ever loaded": {[]*core.Model{listed}, "", refusal{errs.ModelAmbiguous, "Request for unknown model: 'm' is not found"}},
	} {
		t.Run(name, func(t *testing.T) {
			v, err := core.NewSnapshot(1, true, tt.models).Resolve("m", "")
			if d := cmp.Diff(tt.refusal, refusalOf(err)); d != "" {
				t.Error(d)
			}
			if err == nil && v.Ref.Namespace != tt.namespace {
				t.Errorf("resolved to that of %s, want %s", v.Ref.Namespace, tt.namespace)
			}
		})
	}
}

func TestIndexListsEveryVersion(t *testing.T) {
	failed := version("a", 2, infer.Unavailable)
	failed.Cause = "no such file"
	h := newGateway(t,
		&core.Model{Name: "b", Problem: "bad config"},
		&core.Model{Name: "c", Removed: true, Versions: []*core.Version{version("c", 1, infer.Unavailable)}},
		&core.Model{Name: "a", Versions: []*core.Version{version("a", 1, infer.Ready), failed, version("a", 3, infer.Loading)}})
	all := []core.IndexEntry{
		{Name: "a", Version: "1", State: "READY"},
		{Name: "a", Version: "2", State: "UNAVAILABLE", Reason: "no such file"},
		{Name: "a", Version: "3", State: "LOADING"},
		{Name: "b", State: "UNAVAILABLE", Reason: "bad config"},
	}
	if d := cmp.Diff(all, h.Index(false)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(all[:1], h.Index(true)); d != "" {
		t.Error(d)
	}
}

// A version whose instances are unavailable is not ready, and requests for it wait. As in Triton, the index
// says that it is loaded, and why it is not ready.
func TestVersionsThatAreAwayAreNotReady(t *testing.T) {
	away := version("a", 1, infer.Ready)
	away.Away = "it is started again"
	h := newGateway(t, &core.Model{Name: "a", Versions: []*core.Version{away}})
	if ready, err := h.ModelReady("a", ""); ready || err != nil {
		t.Errorf("ready: %v, %v", ready, err)
	}
	want := []core.IndexEntry{{Name: "a", Version: "1", State: "READY", Reason: "it is started again"}}
	for _, readyOnly := range []bool{false, true} {
		if d := cmp.Diff(want, h.Index(readyOnly)); d != "" {
			t.Errorf("index, ready only %v: %s", readyOnly, d)
		}
	}
	if v, err := h.Snapshot().Resolve("a", "1"); v != away || err != nil {
		t.Errorf("requests resolve to %v, %v", v, err)
	}
	if !h.Snapshot().AllReady() {
		t.Error("the server is not ready")
	}
}
