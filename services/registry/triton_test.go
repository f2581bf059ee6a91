package registry_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry"
)

// The tests of this file hold the outcomes of loads against those of Triton.

const (
	serve    = nereidv1.DesiredState_DESIRED_STATE_SERVE
	unloaded = nereidv1.DesiredState_DESIRED_STATE_UNLOADED
)

// desired is what versions are to be, in their order, with their problems.
func desired(v *nereidv1.ModelValue) string {
	words := map[nereidv1.DesiredState]string{serve: "serve", unloaded: "unloaded"}
	var list []string
	for _, version := range v.GetVersions() {
		list = append(list, strings.TrimSpace(words[version.GetDesired()]+" "+version.GetProblem()))
	}
	return strings.Join(list, ", ")
}

// add puts a model into the repository, with a file for each version.
func (s *scene) add(model string, versions ...string) {
	s.t.Helper()
	files := map[string]string{"config.pbtxt": echoConfig + "version_policy { all {} }\n"}
	for _, v := range versions {
		files[v+"/f"] = v
	}
	// At once: of a model that a poll sees in part nothing is remembered.
	if err := os.Rename(repository(s.t, files), filepath.Join(s.root, model)); err != nil {
		s.t.Fatal(err)
	}
}

// value waits until a model's value is as wanted.
func (s *scene) value(model, what string, holds func(*nereidv1.ModelValue) bool) (value *nereidv1.ModelValue) {
	s.t.Helper()
	s.models.await(s.t, what, func(all map[string]*nereidv1.ModelValue) bool {
		value = all[model]
		return holds(value)
	})
	return value
}

// failing is what a worker says that could not load versions of a number.
func failing(a *nereidv1.AssignmentValue, number int64, cause string) []*nereidv1.WorkerVersion {
	all := runs(a, nil)
	for _, v := range all {
		if v.GetModel().GetVersion() == number {
			v.State, v.Cause = nereidv1.State_STATE_UNAVAILABLE, cause
		}
	}
	return all
}

func polled(c *registry.Config) {
	c.Control, c.LoadModels, c.Poll = registry.ControlPoll, nil, registry.Seconds(10*time.Millisecond)
}

func TestOneFailedVersionUnloadsTheOthersOfAFirstLoad(t *testing.T) {
	s := newScene(t, func(*registry.Config) {})
	s.add("p", "1", "2")
	outcome := s.load("p")
	s.worker.say(failing(s.assigned("w", "m", "p", "p"), 2, "boom"))
	if err := <-outcome; errs.Of(err) != errs.LoadFailed || !strings.Contains(err.Error(), "load failed for model 'p': version 2 is at UNAVAILABLE state: boom;") {
		t.Errorf("Load = %v", err)
	}
	s.value("p", "the unloaded version", func(v *nereidv1.ModelValue) bool { return desired(v) == "unloaded, serve boom" })
	s.assigned("w", "m")
	// A load of what failed tries it again.
	outcome = s.load("p")
	s.worker.say(runs(s.assigned("w", "m", "p", "p"), nil))
	if err := <-outcome; err != nil {
		t.Errorf("the second Load = %v", err)
	}
	s.value("p", "both versions", func(v *nereidv1.ModelValue) bool { return desired(v) == "serve, serve" })
}

func TestPollDoesNotTryAFailedFirstLoadAgain(t *testing.T) {
	s := newScene(t, polled)
	s.add("p", "1", "2")
	s.worker.say(failing(s.assigned("w", "m", "p", "p"), 2, "boom"))
	s.value("p", "the unloaded version", func(v *nereidv1.ModelValue) bool { return desired(v) == "unloaded, serve boom" })
	for _, later := range []string{"x", "y"} { // a model that comes later shows that polls go on
		s.add(later, "1")
		s.value(later, "a new model", func(v *nereidv1.ModelValue) bool { return v != nil })
	}
	all, _ := s.models.all(t)
	if got := desired(all["p"]); got != "unloaded, serve boom" {
		t.Errorf("later the versions are to be %s", got)
	}
	write(t, filepath.Join(s.root, "p/2/f"), "mended")
	s.assigned("w", "m", "p", "p", "x", "y")
}

func TestOverrideIsKeptWhileTheFilesAreTheSame(t *testing.T) {
	const other = `{"backend": "echo", "max_batch_size": 8, "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}], "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}]}`
	for name, tt := range map[string]struct {
		change func(*scene)
		kept   bool
	}{
		"nothing changes":             {func(*scene) {}, true},
		"a file is written as it was": {func(s *scene) { write(s.t, filepath.Join(s.root, "m/1/f"), "one") }, true},
		"a load with an override that cannot be read": {func(s *scene) {
			if err := s.replica.Load(testContext(s.t), "m", "{", nil); errs.Of(err) != errs.LoadUnknownModel {
				s.t.Errorf("Load = %v", err)
			}
		}, true},
		"a file changes": {func(s *scene) { write(s.t, filepath.Join(s.root, "m/1/f"), "two") }, false},
		"the repository's configuration changes": {func(s *scene) {
			write(s.t, filepath.Join(s.root, "m/config.pbtxt"), "# mended\n"+echoConfig)
		}, false},
		"there is another version": {func(s *scene) {
			if err := os.CopyFS(filepath.Join(s.root, "m/2"), os.DirFS(filepath.Join(s.root, "m/1"))); err != nil {
				s.t.Fatal(err)
			}
		}, false},
		"the model is unloaded": {func(s *scene) {
			if err := s.replica.Unload(testContext(s.t), "m", false); err != nil {
				s.t.Fatal(err)
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, func(*registry.Config) {})
			s.model("the first content", whole)
			s.obey()
			if err := s.replica.Load(testContext(t), "m", other, nil); err != nil {
				t.Fatalf("Load = %v", err)
			}
			if v := s.model("the override", whole); v.GetConfig().GetMaxBatchSize() != 8 || !v.GetOverridden() {
				t.Errorf("with an override: %v", v)
			}
			tt.change(s)
			if err := <-s.load("m"); err != nil {
				t.Fatalf("Load = %v", err)
			}
			v := s.model("the end of the load", whole)
			if kept := v.GetOverridden(); kept != tt.kept || (v.GetConfig().GetMaxBatchSize() == 8) != tt.kept {
				t.Errorf("after a load without override it is kept: %v, want %v: %v", kept, tt.kept, v)
			}
		})
	}
}

func TestDuplicateModels(t *testing.T) {
	const cause = "model appears in two or more repositories"
	for name, tt := range map[string]struct {
		edit func(*registry.Config)
		want string // of the value
	}{
		"are unloaded by a poll":                  {polled, ""},
		"are refused by a load and go on serving": {func(*registry.Config) {}, "serve"},
	} {
		t.Run(name, func(t *testing.T) {
			other := t.TempDir()
			s := newScene(t, func(c *registry.Config) {
				tt.edit(c)
				c.Repositories = append(c.Repositories, other)
			})
			s.model("the first content", whole)
			if err := os.CopyFS(filepath.Join(other, "m"), os.DirFS(filepath.Join(s.root, "m"))); err != nil {
				t.Fatal(err)
			}
			if tt.want != "" {
				if err := <-s.load("m"); errs.Of(err) != errs.LoadUnknownModel || !strings.HasPrefix(err.Error(), "failed to load 'm', failed to poll from model repository: "+cause) {
					t.Errorf("Load = %v", err)
				}
			}
			s.model("a problem", func(v *nereidv1.ModelValue) bool {
				return strings.HasPrefix(v.GetProblem()+v.GetFailure(), cause) && desired(v) == tt.want
			})
			if tt.want != "" {
				return
			}
			s.assigned("w")
			if err := os.RemoveAll(filepath.Join(other, "m")); err != nil {
				t.Fatal(err)
			}
			s.model("the model again", func(v *nereidv1.ModelValue) bool { return v.GetProblem() == "" && desired(v) == "serve" })
		})
	}
}

func TestRemovedVersionsAndModelsAreRemembered(t *testing.T) {
	s := newScene(t, polled)
	s.add("p", "1", "2")
	s.worker.say(runs(s.assigned("w", "m", "p", "p"), nil))
	remove := func(name string) {
		t.Helper()
		if err := os.RemoveAll(filepath.Join(s.root, name)); err != nil {
			t.Fatal(err)
		}
	}
	remove("p/1")
	s.value("p", "the removed version", func(v *nereidv1.ModelValue) bool { return desired(v) == "unloaded, serve" })
	s.assigned("w", "m", "p")
	remove("p")
	s.value("p", "the removed model", func(v *nereidv1.ModelValue) bool { return desired(v) == "unloaded, unloaded" && v.GetRemoved() })
	s.assigned("w", "m")
	s.add("p", "1")
	s.value("p", "the model again", func(v *nereidv1.ModelValue) bool { return desired(v) == "serve, unloaded" && !v.GetRemoved() })
}

func TestNamesThatNoModelCanHave(t *testing.T) {
	s := newScene(t, func(*registry.Config) {})
	for _, name := range []string{"../etc", "..", ".", "a/b", "a\\b"} {
		want := "failed to load '" + name + "', failed to poll from model repository"
		if err := <-s.load(name); errs.Of(err) != errs.LoadUnknownModel || err.Error() != want {
			t.Errorf("load of %q: %v, want %s", name, err, want)
		}
		if err := s.replica.Unload(testContext(t), name, false); err != nil {
			t.Errorf("unload of %q: %v", name, err)
		}
	}
	const empty = "Model name cannot be empty. Please enter a valid name to deploy."
	for verb, err := range map[string]error{"load": <-s.load(" "), "unload": s.replica.Unload(testContext(t), " ", false)} {
		if errs.Of(err) != errs.InvalidParameter || err.Error() != empty {
			t.Errorf("%s of a blank: %v", verb, err)
		}
	}
}

// Two ensembles of which each is a step of the other end their loads, also at the same time.
func TestLoadsOfACircleEnd(t *testing.T) {
	s := newScene(t, func(*registry.Config) {})
	for name, step := range map[string]string{"a": "b", "b": "c", "c": "a"} {
		config := `platform: "ensemble" input { name: "x" data_type: TYPE_FP32 dims: 1 } output { name: "y" data_type: TYPE_FP32 dims: 1 }
ensemble_scheduling { step { model_name: "` + step + `" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } }`
		if err := os.Rename(repository(t, map[string]string{"config.pbtxt": config, "1/.keep": ""}), filepath.Join(s.root, name)); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 {
		var outcomes []<-chan error
		for _, name := range []string{"a", "b", "c", "a"} {
			outcomes = append(outcomes, s.load(name))
		}
		for _, outcome := range outcomes {
			if err := <-outcome; err == nil {
				t.Error("a circle was loaded")
			}
		}
	}
}

func TestLoadsOfWhatCannotBeReadBeginAsInTriton(t *testing.T) {
	s := newScene(t, func(*registry.Config) {})
	s.add("broken")
	write(t, filepath.Join(s.root, "broken/config.pbtxt"), "max_batch_size: \"x\"")
	s.add("versionless")
	for name, text := range map[string]string{
		"absent":      "failed to load 'absent', failed to poll from model repository",
		"broken":      "failed to load 'broken', failed to poll from model repository: ",
		"versionless": "load failed for model 'versionless': at least one version must be available under the version policy of model 'versionless'",
	} {
		if err := <-s.load(name); err == nil || !strings.HasPrefix(err.Error(), text) {
			t.Errorf("Load = %v, want %s", err, text)
		}
	}
}

func TestFilesThatAreExecutedAreTakenOnlyIfASettingSaysSo(t *testing.T) {
	for _, allowed := range []bool{false, true} {
		s := newScene(t, func(c *registry.Config) { c.Artifacts, c.AllowModelCode.On = t.TempDir(), allowed })
		outcome := make(chan error, 1)
		go func() {
			outcome <- s.replica.Load(testContext(t), "p", `{"backend": "python", "input": [{"name": "x", "data_type": "TYPE_INT32", "dims": [1]}], "output": [{"name": "y", "data_type": "TYPE_INT32", "dims": [1]}]}`,
				map[string][]byte{"1/model.py": []byte("import os")})
		}()
		if allowed {
			s.worker.say(runs(s.assigned("w", "m", "p"), nil))
		}
		switch err := <-outcome; {
		case allowed && err != nil:
			t.Errorf("Load = %v", err)
		case !allowed && (errs.Of(err) != errs.Unsupported || !strings.HasPrefix(err.Error(), "failed to load 'p': ") || !strings.Contains(err.Error(), "--allow-model-code")):
			t.Errorf("Load = %v", err)
		}
	}
}

// An unloaded model stays so, also one that never had a version.
func TestUnloadOfABrokenModelOutlivesTheLeader(t *testing.T) {
	s := newScene(t, func(*registry.Config) {})
	epoch := s.announced(0).GetEpoch()
	s.add("broken")
	write(t, filepath.Join(s.root, "broken/config.pbtxt"), "max_batch_size: \"x\"")
	if err := <-s.load("broken"); err == nil {
		t.Error("a broken model is loaded")
	}
	s.value("broken", "the problem", func(v *nereidv1.ModelValue) bool { return v.GetProblem() != "" })
	if err := s.replica.Unload(testContext(t), "broken", false); err != nil {
		t.Fatal(err)
	}
	s.replica.stop()
	second := s.startWith(func(c *registry.Config) {
		c.Repositories, c.Control, c.LoadModels = []string{s.root}, registry.ControlExplicit, []string{"m", "broken"}
	})
	s.announced(epoch)
	second.logs.await(t, "scan announced")
	if all, _ := s.models.all(t); all["broken"].GetProblem() != "" {
		t.Errorf("the next leader loads it: %v", all["broken"])
	}
}

// The load of a model fails whose backend there is not, rather than its reading:
// the version says why, and the server is not ready.
func TestModelOfAnUnknownBackendIsLoaded(t *testing.T) {
	s := newScene(t, func(c *registry.Config) { c.Backends = []string{"echo"} })
	s.add("p", "1")
	write(t, filepath.Join(s.root, "p/config.pbtxt"), `backend: "mine"`)
	outcome := s.load("p")
	s.worker.say(failing(s.assigned("w", "m", "p"), 1, "this server has no backend 'mine'"))
	if err := <-outcome; errs.Of(err) != errs.LoadFailed || err.Error() != "load failed for model 'p': version 1 is at UNAVAILABLE state: this server has no backend 'mine';" {
		t.Errorf("Load = %v", err)
	}
	if v := s.value("p", "the version", func(v *nereidv1.ModelValue) bool { return desired(v) == "serve" }); v.GetProblem() != "" {
		t.Errorf("the model's problem is %q", v.GetProblem())
	}
}
