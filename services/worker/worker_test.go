package worker_test

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/worker"
)

// lines gives the value's versions as text.
func lines(v *said) []string {
	var list []string
	for _, version := range v.GetVersions() {
		var names []string
		for _, in := range version.GetInstances() {
			names = append(names, in.GetName()+":"+in.GetDevice())
		}
		list = append(list, strings.TrimSpace(strings.Join(append([]string{
			version.GetModel().GetName(), "g" + string(rune('0'+version.GetModel().GetGeneration())),
			strings.TrimPrefix(version.GetState().String(), "STATE_"), version.GetCause(),
		}, names...), " ")))
	}
	return list
}

func TestAssignedModelsBecomeReady(t *testing.T) {
	h := newHarness(t)
	h.await("empty value", func(v *said) bool {
		return v != nil && v.GetEpoch() > 0 && v.GetDevice().GetKind() == nereidv1.DeviceKind_DEVICE_KIND_CPU
	})
	models := h.model("a", 1, nil)
	h.model("unassigned", 1, nil)
	v := h.applied(h.assign(assigned("a", 1, 2)))
	if diff := cmp.Diff([]string{"a g1 READY  a_0_0:cpu a_0_1:cpu"}, lines(v)); diff != "" {
		t.Error(diff)
	}
	if v.GetModelsRevision() < models {
		t.Errorf("applied revision %d of the models, want at least %d", v.GetModelsRevision(), models)
	}
	ref := infer.ModelRef{Name: "a", Version: 1, Generation: 1}
	if diff := cmp.Diff(map[string]infer.ModelRef{"a_0_0": ref, "a_0_1": ref}, h.scheduler.models()); diff != "" {
		t.Error(diff)
	}
	if h.scheduler.worker != v.GetEpoch() || !h.worker.Ready() {
		t.Errorf("attached as %d, ready %v; want epoch %d", h.scheduler.worker, h.worker.Ready(), v.GetEpoch())
	}
}

// The models may come after the assignment.
func TestAssignmentWaitsForItsModels(t *testing.T) {
	h := newHarness(t)
	before := h.model("other", 1, nil)
	first := h.assignBy(before+2, assigned("a", 2, 1)) // by the second write from here
	h.model("a", 1, nil)
	h.model("a", 2, nil)
	if diff := cmp.Diff([]string{"a g2 READY  a_0_0:cpu"}, lines(h.applied(first))); diff != "" {
		t.Error(diff)
	}
}

func TestEditsChangeWhatIsLoaded(t *testing.T) {
	h := newHarness(t)
	h.model("a", 1, nil)
	h.model("b", 1, nil)
	h.applied(h.assign(assigned("a", 1, 1), assigned("b", 1, 1)))

	h.model("a", 2, nil)
	v := h.applied(h.assign(assigned("a", 2, 1), assigned("b", 1, 3)))
	if diff := cmp.Diff([]string{"a g2 READY  a_0_0:cpu", "b g1 READY  b_0_0:cpu b_0_1:cpu b_0_2:cpu"}, lines(v)); diff != "" {
		t.Error(diff)
	}
	v = h.applied(h.assign(assigned("b", 1, 1)))
	if diff := cmp.Diff([]string{"b g1 READY  b_0_0:cpu"}, lines(v)); diff != "" {
		t.Error(diff)
	}
	want := map[string]infer.ModelRef{"b_0_0": {Name: "b", Version: 1, Generation: 1}}
	if diff := cmp.Diff(want, h.scheduler.models()); diff != "" {
		t.Error(diff)
	}

	unloaded := h.model("b", 1, func(v *nereidv1.ModelValue) {
		v.Versions[0].Desired = nereidv1.DesiredState_DESIRED_STATE_UNLOADED
	})
	v = h.await("unload", func(v *said) bool { return v != nil && v.GetModelsRevision() >= unloaded })
	if diff := cmp.Diff([]string{"b g1 READY  b_0_0:cpu"}, lines(v)); diff != "" {
		t.Errorf("while gateways may still send requests: %s", diff)
	}
	v = h.applied(h.assign())
	if len(v.GetVersions()) != 0 || len(h.scheduler.granted()) != 0 {
		t.Errorf("%v is left after the unload", lines(v))
	}
}

func TestFailedLoadShowsItsCauseAndDisturbsNobody(t *testing.T) {
	h := newHarness(t)
	h.model("a", 1, nil)
	h.applied(h.assign(assigned("a", 1, 1)))
	h.model("a", 2, func(v *nereidv1.ModelValue) { v.Config.Output[0].Dims = []int64{5} })
	h.model("onnx", 1, func(v *nereidv1.ModelValue) { v.Config.Backend = "onnxruntime" })
	h.model("plan", 1, func(v *nereidv1.ModelValue) { v.Config.Backend = "fil" })
	h.model("far", 1, func(v *nereidv1.ModelValue) { v.Versions[0].Url = "s3://models/far/1" })
	h.model("refused", 1, func(v *nereidv1.ModelValue) { v.Problem = "no such luck" })
	v := h.applied(h.assign(assigned("a", 2, 1), assigned("onnx", 1, 1), assigned("plan", 1, 1), assigned("far", 1, 1), assigned("refused", 1, 1)))
	got := lines(v)
	want := []string{
		"a g1 READY  a_0_0:cpu",
		"a g2 UNAVAILABLE load model 'a': output 'y' is INT8[5], but input 'x' in its position is INT8[4]: declare them alike",
		`far g1 UNAVAILABLE the files of s3://models/far/1 have no digest to fetch them by`,
		"onnx g1 UNAVAILABLE ONNX Runtime cannot be opened",
		"plan g1 UNAVAILABLE this server has no backend 'fil': it has dyna_sequence, echo, identity, onnxruntime, openvino, python, pytorch, repeat, sequence, square, tensorflow, " +
			"tensorrt, and loads no shared objects as backends: convert the trees with onnxmltools or skl2onnx and set backend to onnxruntime",
		"refused g1 UNAVAILABLE no such luck",
	}
	for i, line := range want {
		if i >= len(got) || !strings.HasPrefix(got[i], line) {
			t.Errorf("version %d: %q, want %q", i, got, line)
		}
	}
	h.model("a", 3, nil)
	v = h.applied(h.assign(assigned("a", 3, 1)))
	if diff := cmp.Diff([]string{"a g3 READY  a_0_0:cpu"}, lines(v)); diff != "" {
		t.Error(diff)
	}
}

// execute runs one order on the only instance and returns its one response.
func (h *harness) execute(inputs ...infer.Tensor) *infer.Response {
	h.t.Helper()
	request := &infer.Request{
		Work: infer.Work{Request: infer.RequestID{Origin: 1, Number: 2}, Attempt: 1, Epoch: 1}, BatchSize: 1, Inputs: inputs,
	}
	for id := range h.scheduler.granted() {
		h.scheduler.executor.Execute(&infer.Batch{ID: infer.BatchID{Epoch: 1, Number: 1}, Instance: id, Requests: []*infer.Request{request}})
	}
	r := <-h.responses
	if r.Err != nil || !r.Final || r.Work != request.Work {
		h.t.Fatalf("response %+v", r)
	}
	h.scheduler.await(h.t, "completion", func() bool { return len(h.scheduler.done) == 1 })
	return r
}

func outputBytes(t *testing.T, r *infer.Response, name string) []byte {
	t.Helper()
	for _, out := range r.Outputs {
		if out.Name == name {
			data, err := out.Data.Bytes()
			if err != nil {
				t.Fatal(err)
			}
			return data
		}
	}
	t.Fatalf("no output %s in %+v", name, r.Outputs)
	return nil
}

func TestOrdersAreAnswered(t *testing.T) {
	h := newHarness(t)
	h.model("a", 1, nil)
	h.applied(h.assign(assigned("a", 1, 1)))
	freed := make(chan bool, 1)
	data := tensor.Wrap([]byte{1, 2, 3, 4}, false, func(*tensor.Buffer) { freed <- true })
	r := h.execute(infer.Tensor{Name: "x", Datatype: tensor.Int8, Shape: tensor.Shape{1, 4}, Data: tensor.InBuffer(data, 0, 4)})
	if diff := cmp.Diff([]byte{1, 2, 3, 4}, outputBytes(t, r, "y")); diff != "" {
		t.Error(diff)
	}
	r.Release()
	<-freed
	if done := h.scheduler.done; len(done) != 1 || done[0].Executions != 1 {
		t.Errorf("told of %+v, want the one execution", done)
	}
	own := []string{"nereid_worker_execution_seconds", "nereid_worker_load_seconds", "nereid_worker_instances", "nereid_worker_tensor_memory_bytes"}
	if n, err := testutil.GatherAndCount(h.metrics, own...); err != nil || n != 6 {
		t.Errorf("%d series, want 6; %v", n, err)
	}
	problems, err := testutil.GatherAndLint(h.metrics, own...)
	if err != nil || len(problems) != 0 {
		t.Errorf("metrics: %v %v", problems, err)
	}
}

func TestLoadTimesAreShownWhileTheVersionIsThere(t *testing.T) {
	h := newHarness(t)
	tagged := func(v *nereidv1.ModelValue) { v.Config.MetricTags = map[string]string{"team": "vision"} }
	h.model("a", 1, tagged)
	h.model("b", 1, func(v *nereidv1.ModelValue) { v.Config.Output[0].Dims = []int64{5} })
	h.applied(h.assign(assigned("a", 1, 1), assigned("b", 1, 1)))
	series := func() (labels []string) {
		t.Helper()
		families, err := h.metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() != "nv_model_load_duration_secs" {
					continue
				}
				for _, label := range m.GetLabel() {
					labels = append(labels, label.GetName()+"="+label.GetValue())
				}
			}
		}
		return labels
	}
	want := []string{"_team=vision", "model=a", "version=1"} // b was not loaded
	if diff := cmp.Diff(want, series()); diff != "" {
		t.Error(diff)
	}
	h.model("a", 2, tagged)
	h.applied(h.assign(assigned("a", 2, 1)))
	if diff := cmp.Diff(want, series()); diff != "" {
		t.Errorf("after a reload: %s", diff)
	}
	h.applied(h.assign())
	if left := series(); len(left) != 0 {
		t.Errorf("%v is left after the unload", left)
	}
	if n, err := testutil.GatherAndCount(h.metrics, "nv_pinned_memory_pool_total_bytes", "nv_pinned_memory_pool_used_bytes"); err != nil || n != 2 {
		t.Errorf("%d series of pinned memory, want 2; %v", n, err)
	}
}

func TestOnnxModel(t *testing.T) {
	library := onnxmodel.Library(t)
	dir, err := filepath.Abs("../../examples/models/simple")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "config.pbtxt"))
	if err != nil {
		t.Fatal(err)
	}
	config, err := modelconfig.Load(text, modelconfig.Directory{Name: "simple"})
	if err != nil {
		t.Fatal(err)
	}
	h := newHarness(t, func(c *worker.Config) { c.OnnxRuntimeLibrary = library })
	h.model("simple", 1, func(v *nereidv1.ModelValue) {
		v.Config, v.Url, v.Versions[0].Url = config, "file://"+dir, "file://"+dir+"/1"
	})
	v := h.applied(h.assign(assigned("simple", 1, 1)))
	if diff := cmp.Diff([]string{"simple g1 READY  simple_0_0:cpu"}, lines(v)); diff != "" {
		t.Fatal(diff)
	}
	input := func(name string, value byte) infer.Tensor {
		data := make([]byte, 64)
		for i := 0; i < len(data); i += 4 {
			data[i] = value
		}
		return infer.Tensor{Name: name, Datatype: tensor.Int32, Shape: tensor.Shape{1, 16}, Data: tensor.InHeap(data)}
	}
	r := h.execute(input("INPUT0", 7), input("INPUT1", 2))
	if sum, difference := outputBytes(t, r, "OUTPUT0")[60], outputBytes(t, r, "OUTPUT1")[60]; sum != 9 || difference != 5 {
		t.Errorf("7 and 2 give %d and %d, want 9 and 5", sum, difference)
	}
	r.Release()
	h.stop()
	if n := h.pool.Stats().InUse; n != 0 {
		t.Errorf("%d bytes of tensor memory were not given back", n)
	}
}

func TestDrain(t *testing.T) {
	h := newHarness(t)
	h.model("a", 1, nil)
	h.applied(h.assign(assigned("a", 1, 2)))
	h.scheduler.mu.Lock()
	h.scheduler.holdBack = true
	h.scheduler.mu.Unlock()
	stopped := make(chan bool)
	go func() {
		h.stop()
		close(stopped)
	}()
	h.await("UNLOADING", func(v *said) bool {
		return len(v.GetVersions()) == 1 && v.GetVersions()[0].GetState() == nereidv1.State_STATE_UNLOADING
	})
	h.scheduler.await(t, "retirement", func() bool { return len(h.scheduler.retired) == 2 })
	if h.scheduler.worker == 0 {
		t.Error("detached before the instances were retired")
	}
	for _, id := range h.scheduler.retired {
		h.scheduler.executor.Retired(id)
	}
	<-stopped
	h.await("released lease", func(v *said) bool { return v == nil })
	if h.scheduler.worker != 0 || h.worker.Ready() {
		t.Error("the worker is still attached or ready")
	}
}

func TestLaterWorkerTakesTheIdForGood(t *testing.T) {
	h := newHarness(t)
	h.model("a", 1, nil)
	first := h.applied(h.assign(assigned("a", 1, 1)))
	stop := h.another()
	defer stop()
	if err := <-h.ended; errs.Of(err) != errs.AlreadyExists {
		t.Errorf("the earlier worker ended with %v, want already_exists", err)
	}
	if len(h.scheduler.granted()) != 0 {
		t.Error("the earlier worker left instances behind")
	}
	h.await("the later worker's instances", func(v *said) bool {
		return v != nil && v.GetEpoch() > first.GetEpoch() && len(v.GetVersions()) == 1 && v.GetVersions()[0].GetState() == nereidv1.State_STATE_READY
	})
}

func TestConfigThatCannotWork(t *testing.T) {
	for name, edit := range map[string]func(*worker.Config){
		"no id":                  func(c *worker.Config) { c.ID = "" },
		"device of no kind":      func(c *worker.Config) { c.Device.Kind = modelconfig.KindModel },
		"device below the first": func(c *worker.Config) { c.Device.Number = -1 },
		"fewer than no cores":    func(c *worker.Config) { c.Cores = -1 },
		"a negative retry":       func(c *worker.Config) { c.LoadRetries = -1 },
		"no load at a time":      func(c *worker.Config) { c.LoadConcurrency = 0 },
		"negative drain":         func(c *worker.Config) { c.DrainTimeout = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			c := worker.Default()
			edit(&c)
			if _, err := worker.New(c, worker.Deps{}); errs.Of(err) != errs.ConfigInvalid {
				t.Errorf("New = %v, want config_invalid", err)
			}
		})
	}
	if err := worker.Default().Validate(); err != nil {
		t.Errorf("the default is refused: %v", err)
	}
}

// A worker that is told to stop goes on until nothing is assigned to it.
func TestWorkerLeavesWhenItsModelsAreElsewhere(t *testing.T) {
	h := newHarness(t, func(c *worker.Config) { c.LeaveTimeout, c.MemoryBudget = patience, "1GiB" })
	accompany(t, h)
	h.model("a", 1, nil)
	h.applied(h.assign(assigned("a", 1, 1)))
	stopped := make(chan bool)
	go func() {
		h.stop()
		close(stopped)
	}()
	v := h.await("the word that it leaves", func(v *said) bool { return v != nil && v.GetLeaving() })
	if diff := cmp.Diff([]string{"a g1 READY  a_0_0:cpu"}, lines(v)); diff != "" || v.GetMemoryBudgetBytes() != 1<<30 {
		t.Errorf("while it leaves it runs (-want +got): %s; budget %d", diff, v.GetMemoryBudgetBytes())
	}
	h.assign() // by which it is told that it may
	<-stopped
	h.await("released lease", func(v *said) bool { return v == nil })
}

// What people see of a worker is what its readiness endpoint says: also of one
// that has nothing to run, and of one that waits for nobody when it stops.
func TestLeaseSaysWhetherTheWorkerIsReady(t *testing.T) {
	h := newHarness(t)
	h.await("readiness", func(v *said) bool { return v != nil && v.GetState() == nereidv1.State_STATE_READY })
	h.model("a", 1, nil)
	h.applied(h.assign(assigned("a", 1, 1)))
	h.scheduler.mu.Lock()
	h.scheduler.holdBack = true // it has something for the instance yet
	h.scheduler.mu.Unlock()
	stopped := make(chan bool)
	go func() {
		h.stop()
		close(stopped)
	}()
	h.await("the word that it stops", func(v *said) bool { return v != nil && v.GetState() == nereidv1.State_STATE_UNLOADING })
	h.scheduler.await(t, "retirement", func() bool { return len(h.scheduler.retired) == 1 })
	h.scheduler.executor.Retired(h.scheduler.retired[0])
	<-stopped
}

func TestLeaseSaysHowOftenTheWorkerWasStartedAgain(t *testing.T) {
	h := newHarness(t, func(c *worker.Config) { c.Restarts, c.LastExit = 2, "signal: killed" })
	v := h.await("lease", func(v *said) bool { return v != nil })
	if v.GetRestarts() != 2 || v.GetLastExit() != "signal: killed" || !v.GetUnsteady() {
		t.Errorf("the lease says %d restarts, the last after %q, unsteady %t", v.GetRestarts(), v.GetLastExit(), v.GetUnsteady())
	}
}

// Nobody takes the models of the only worker: waiting would hold up the stop.
func TestOnlyWorkerStopsAtOnce(t *testing.T) {
	h := newHarness(t, func(c *worker.Config) { c.LeaveTimeout = 2 * patience })
	h.model("a", 1, nil)
	h.applied(h.assign(assigned("a", 1, 1)))
	h.stop()
	h.await("released lease", func(v *said) bool { return v == nil })
}

func TestMemoryIsMeasured(t *testing.T) {
	const size = 64 << 20
	h := newHarness(t)
	debug.FreeOSMemory() // what earlier tests left would be taken first, and the process not grow
	h.model("a", 1, func(v *nereidv1.ModelValue) {
		v.Config.Parameters = map[string]*inference.ModelParameter{"memory_bytes": {StringValue: strconv.Itoa(size)}}
	})
	v := h.applied(h.assign(assigned("a", 1, 2)))
	if got := v.GetVersions()[0].GetMemoryBytes(); got < size || got > 8*size {
		t.Errorf("two instances of %d bytes are measured as %d", size, got)
	}
}
