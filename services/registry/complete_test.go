package registry_test

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/errs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry"
)

// workers are called for models' code. They set max_batch_size.
type workers struct {
	mu     sync.Mutex
	called []string         // addresses; guarded by mu
	drafts []control.Draft  // guarded by mu
	fail   map[string]error // by address; guarded by mu
}

func (w *workers) complete(_ context.Context, address string, d control.Draft) ([]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.called, w.drafts = append(w.called, address), append(w.drafts, d)
	if err := w.fail[address]; err != nil {
		return nil, err
	}
	return bytes.Replace(d.Config, []byte(`"max_batch_size":0`), []byte(`"max_batch_size":8`), 1), nil
}

const pythonModel = "class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(c):\n        return c\n"

// completing is a store with replicas of a cluster that serve Python models.
func completing(t *testing.T) (*store, *workers, func(edit func(*registry.Config), root string) *replica) {
	s, w := newStore(t), &workers{fail: make(map[string]error)}
	s.complete = w.complete
	return s, w, func(edit func(*registry.Config), root string) *replica {
		return s.startWith(func(c *registry.Config) {
			c.Repositories, c.Backends, c.Address = []string{root}, []string{"python"}, "127.0.0.1:1"
			if edit != nil {
				edit(c)
			}
		})
	}
}

// awaitModel waits for the value of a model.
func (s *store) awaitModel(what, key string, done func(*nereidv1.ModelValue) bool) {
	s.t.Helper()
	s.models.await(s.t, what, func(all map[string]*nereidv1.ModelValue) bool { return all[key] != nil && done(all[key]) })
}

func waits(v *nereidv1.ModelValue) bool {
	return strings.Contains(v.GetProblem(), "has no worker that could run the model's auto_complete_config")
}

func completed(v *nereidv1.ModelValue) bool {
	return v.GetProblem() == "" && v.GetConfig().GetMaxBatchSize() == 8
}

func TestModelsWaitForAWorkerThatCompletesThem(t *testing.T) {
	for name, explicit := range map[string]bool{"loaded by themselves": false, "loaded by name": true} {
		t.Run(name, func(t *testing.T) {
			s, w, start := completing(t)
			start(func(c *registry.Config) {
				if explicit {
					c.Control, c.LoadModels = registry.ControlExplicit, []string{"m"}
				}
			}, repository(t, map[string]string{"m/1/model.py": pythonModel}))
			s.awaitModel("the cause", "m", waits)
			w.mu.Lock()
			w.fail["a:1"] = errs.New(errs.StateUnavailable, "it does not answer")
			w.mu.Unlock()
			s.workerAt("gone", "a:1", nereidv1.DeviceKind_DEVICE_KIND_CPU)
			s.workerAt("there", "b:1", nereidv1.DeviceKind_DEVICE_KIND_CPU)
			s.awaitModel("the configuration", "m", completed)
			w.mu.Lock()
			defer w.mu.Unlock()
			if d := w.drafts[len(w.drafts)-1]; w.called[len(w.called)-1] != "b:1" || d.Model.Name != "m" || d.Digest == "" {
				t.Errorf("called %v, last for %+v", w.called, d)
			}
		})
	}
}

func TestWorkersOfTheModelsPoolAreCalled(t *testing.T) {
	s, w, start := completing(t)
	s.workerAt("other", "a:1", nereidv1.DeviceKind_DEVICE_KIND_CPU)
	start(func(c *registry.Config) { c.PoolModels = []string{"large=m"} }, repository(t, map[string]string{"m/1/model.py": pythonModel, "n/1/model.py": pythonModel}))
	s.awaitModel("the configuration", "n", completed)
	s.awaitModel("the cause", "m", func(v *nereidv1.ModelValue) bool {
		return waits(v) && strings.Contains(v.GetProblem(), "the pool large")
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	if slices.ContainsFunc(w.drafts, func(d control.Draft) bool { return d.Model.Name == "m" }) {
		t.Error("a worker of another pool ran the code")
	}
}

func TestAFailureToCompleteIsTheModels(t *testing.T) {
	s, w, start := completing(t)
	w.fail["a:1"] = errs.New(errs.LoadFailed, "ValueError: boom")
	s.workerAt("w", "a:1", nereidv1.DeviceKind_DEVICE_KIND_CPU)
	r := start(func(c *registry.Config) { c.Control = registry.ControlExplicit }, repository(t, map[string]string{"m/1/model.py": pythonModel}))
	err := r.Load(testContext(t), "m", "", nil)
	if err == nil || !strings.Contains(err.Error(), "1/model.py: ValueError: boom") {
		t.Errorf("Load = %v", err)
	}
}

// A model of a backend that no worker has is assigned as it is: its load says what is
// missing.
func TestModelsOfBackendsThatNoWorkerHasAreAssigned(t *testing.T) {
	s, w, start := completing(t)
	w.fail["a:1"] = errs.New(errs.Unsupported, "there is no such backend")
	s.workerAt("w", "a:1", nereidv1.DeviceKind_DEVICE_KIND_CPU)
	start(func(*registry.Config) {}, repository(t, map[string]string{"m/config.pbtxt": `backend: "mine"`, "m/1/model.py": pythonModel}))
	s.awaitModel("its version", "m", func(v *nereidv1.ModelValue) bool {
		return v.GetProblem() == "" && len(v.GetVersions()) == 1 && v.GetVersions()[0].GetDesired() == nereidv1.DesiredState_DESIRED_STATE_SERVE
	})
}

// TestGivenCodeIsNotRunUnasked has the code of a load that is refused not run before that.
func TestGivenCodeIsNotRunUnasked(t *testing.T) {
	for _, allowed := range []bool{false, true} {
		s, w, start := completing(t)
		s.workerAt("w", "a:1", nereidv1.DeviceKind_DEVICE_KIND_CPU)
		w.fail["a:1"] = errs.New(errs.LoadFailed, "ValueError: boom")
		r := start(func(c *registry.Config) {
			c.Control, c.Artifacts, c.ShareArtifacts = registry.ControlExplicit, t.TempDir(), true
			c.AllowModelCode.On = allowed
		}, t.TempDir())
		err := r.Load(testContext(t), "m", `{"backend": "python"}`, map[string][]byte{"1/model.py": []byte(pythonModel)})
		if err == nil || strings.Contains(err.Error(), "boom") != allowed {
			t.Errorf("allowed %t: Load = %v", allowed, err)
		}
		if len(w.drafts) > 0 != allowed || allowed && !strings.HasPrefix(w.drafts[0].URL, w.drafts[0].ModelURL+"/1") {
			t.Errorf("allowed %t: called for %+v", allowed, w.drafts)
		}
		if allowed && strings.HasPrefix(w.drafts[0].ModelURL, "file:") {
			t.Errorf("a worker of another host cannot read %s", w.drafts[0].ModelURL)
		}
	}
}

func TestACheckRunsNoCode(t *testing.T) {
	cfg := registry.Default()
	cfg.Backends = []string{"python"}
	cfg.Repositories = []string{repository(t, map[string]string{
		"asks/1/model.py": pythonModel, "says/1/model.py": "class TritonPythonModel: pass\n",
		"says/config.pbtxt": `input { name: "x" data_type: TYPE_FP32 dims: 1 } output { name: "y" data_type: TYPE_FP32 dims: 1 }`,
	})}
	models, _, err := registry.Check(t.Context(), cfg, 0)
	if err != nil || len(models) != 2 {
		t.Fatalf("%+v, %v", models, err)
	}
	for _, m := range models {
		if len(m.Problems) > 0 || (len(m.Warnings) > 0) != (m.Name == "asks") {
			t.Errorf("%s: problems %v, warnings %v", m.Name, m.Problems, m.Warnings)
		}
	}
}
