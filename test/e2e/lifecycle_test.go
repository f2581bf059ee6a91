package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Loads and unloads as Triton has them, with Python models that show when they begin and
// end by files, and wait for files.

// gatedModel gives the text of a model that answers with VALUE or the parameter value. Its
// initialize writes init-INSTANCE in DIR and waits until there are as many as the parameter meet
// says and until there is the file that the parameter gate names; its finalize writes finalizing
// and waits for the file that the parameter last names.
func gatedModel(dir string, value int, methods ...string) string {
	return fmt.Sprintf(`import json, os, time
import numpy as np
import triton_python_backend_utils as pb_utils

DIR, VALUE = %q, %d


def until(what, holds):
    end = time.monotonic() + 60
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.01)


def write(name):
    open(os.path.join(DIR, name), "w").close()


def written(name):
    return os.path.exists(os.path.join(DIR, name))


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"]).get("parameters", {})
        self.parameters = {key: value["string_value"] for key, value in parameters.items()}
        write("init-" + args["model_instance_name"])
        meet, gate = int(self.parameters.get("meet", 0)), self.parameters.get("gate")
        until("others", lambda: len([name for name in os.listdir(DIR) if name.startswith("init-")]) >= meet)
        until(gate, lambda: gate is None or written(gate))

    def execute(self, requests):
        value = int(self.parameters.get("value", VALUE))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([value], np.int32))]) for _ in requests]

    def finalize(self):
        last = self.parameters.get("last")
        if last:
            write("finalizing")
            until(last, lambda: written(last))
            write("finalized")
%s`, dir, value, strings.Join(methods, ""))
}

// gatedConfig has these parameters, such as "gate=open", and further fields.
func gatedConfig(fields string, parameters ...string) string {
	text := `backend: "python" input { name: "X" data_type: TYPE_INT32 dims: 1 } output { name: "Y" data_type: TYPE_INT32 dims: 1 } ` + fields + "\n"
	for _, p := range parameters {
		key, value, _ := strings.Cut(p, "=")
		text += fmt.Sprintf("parameters { key: %q value: { string_value: %q } }\n", key, value)
	}
	return text
}

// gatedJSON is the same as a load parameter.
func gatedJSON(t *testing.T, groups string, parameters ...string) string {
	t.Helper()
	config := `{"backend":"python","input":[{"name":"X","data_type":"TYPE_INT32","dims":[1]}],"output":[{"name":"Y","data_type":"TYPE_INT32","dims":[1]}],"instance_group":` + groups + `,"parameters":{`
	for i, p := range parameters {
		key, value, _ := strings.Cut(p, "=")
		if i > 0 {
			config += ","
		}
		config += fmt.Sprintf(`%q:{"string_value":%q}`, key, value)
	}
	return configParameter(t, config+"}}")
}

// configParameter is the body of a load with a configuration.
func configParameter(t *testing.T, config string) string {
	t.Helper()
	body, err := json.Marshal(map[string]any{"parameters": map[string]string{"config": config}})
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// controls begins a load or unload; its outcome comes by the channel.
func (s *server) controls(verb, model, body string) <-chan string {
	outcome := make(chan string, 1)
	go func() {
		status, text := s.do(http.MethodPost, s.HTTP+"/v2/repository/models/"+model+"/"+verb, body)
		outcome <- fmt.Sprintf("%d %s", status, text)
	}()
	return outcome
}

// value is what a model answers with.
func (s *server) value(model string) string {
	s.t.Helper()
	_, text := s.do(http.MethodPost, s.HTTP+"/v2/models/"+model+"/infer", `{"inputs":[{"name":"X","datatype":"INT32","shape":[1],"data":[1]}]}`)
	_, data, _ := strings.Cut(text, `"data":[`)
	value, _, found := strings.Cut(data, "]")
	if !found {
		return text
	}
	return value
}

func (s *server) untilFile(path string) {
	s.t.Helper()
	s.eventually("the file "+path, func() bool { return exists(path) })
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Two loads go on at the same time, and so do the instances of each, beside a model that
// serves and on any number of cores.
func TestLoadsAndInstancesGoOnAtTheSameTime(t *testing.T) {
	dir := t.TempDir()
	two := "instance_group { count: 2 kind: KIND_CPU }"
	s := start(t, repository(t, map[string]string{
		"first/config.pbtxt": echo(0), "first/1/.keep": "",
		"a/config.pbtxt": gatedConfig(two, "meet=4"), "a/1/model.py": gatedModel(dir, 1),
		"b/config.pbtxt": gatedConfig(two, "meet=4"), "b/1/model.py": gatedModel(dir, 2),
	}), "--model-control-mode=explicit", "--load-model=first")
	a, b := s.controls("load", "a", ""), s.controls("load", "b", "")
	if first, second := <-a, <-b; first != "200 " || second != "200 " {
		t.Errorf("the loads: %s and %s", first, second)
	}
	if a, b := s.value("a"), s.value("b"); a != "1" || b != "2" {
		t.Errorf("the models answer %s and %s", a, b)
	}
}

func TestInstancesAreMadeOneAfterAnotherWhereTheVariableSaysSo(t *testing.T) {
	t.Setenv("TRITON_PARALLEL_INSTANCE_LOADING", "0")
	dir := t.TempDir()
	const alone = `
    def initialize(self, args):
        os.mkdir(os.path.join(DIR, "busy"))
        time.sleep(0.2)
        os.rmdir(os.path.join(DIR, "busy"))
        self.parameters = {}
`
	s := start(t, repository(t, map[string]string{
		"a/config.pbtxt": gatedConfig("instance_group { count: 3 kind: KIND_CPU }"), "a/1/model.py": gatedModel(dir, 1, alone),
	}))
	s.wantIndex(entry{"a", "1", "READY", ""})
}

// Files that change while they are loaded are served all the same, and a load meanwhile waits.
func TestFilesSwappedDuringALoadAreServed(t *testing.T) {
	dir := t.TempDir()
	root := repository(t, map[string]string{"m/config.pbtxt": gatedConfig("", "gate=open"), "m/1/model.py": gatedModel(dir, 1)})
	s := start(t, root, "--model-control-mode=explicit")
	first := s.controls("load", "m", "")
	s.eventually("an instance that starts", func() bool {
		started, _ := filepath.Glob(filepath.Join(dir, "init-m_*"))
		return len(started) > 0
	})
	rewrite(t, filepath.Join(root, "m", "1", "model.py"), gatedModel(dir, 2))
	second := s.controls("load", "m", "")
	rewrite(t, filepath.Join(dir, "open"), "")
	if one, two := <-first, <-second; one != "200 " || two != "200 " {
		t.Errorf("the loads: %s and %s", one, two)
	}
	if got := s.value("m"); got != "2" {
		t.Errorf("the model answers %s, want 2", got)
	}
	load, unload := s.controls("load", "m", ""), s.controls("unload", "m", "")
	if one, two := <-load, <-unload; one != "200 " || two != "200 " {
		t.Errorf("load and unload at the same time: %s and %s", one, two)
	}
}

// A load that changes instances alone answers when the old ones are finalized; one that
// changes more when the new ones are ready.
func TestLoadOfOtherInstancesWaitsForFinalize(t *testing.T) {
	dir := t.TempDir()
	s := start(t, repository(t, map[string]string{
		"m/config.pbtxt": gatedConfig("instance_group { count: 1 kind: KIND_CPU }", "last=go"), "m/1/model.py": gatedModel(dir, 1),
	}), "--model-control-mode=explicit", "--load-model=m")
	outcome := s.controls("load", "m", gatedJSON(t, `[{"count":1,"kind":"KIND_CPU","rate_limiter":{"resources":[{"name":"R","count":2}]}}]`, "last=go"))
	s.untilFile(filepath.Join(dir, "finalizing"))
	select {
	case got := <-outcome:
		t.Fatalf("the load answers %s before finalize has returned", got)
	default:
	}
	rewrite(t, filepath.Join(dir, "go"), "")
	if got := <-outcome; got != "200 " || !exists(filepath.Join(dir, "finalized")) {
		t.Errorf("the load answers %s, finalized: %v", got, exists(filepath.Join(dir, "finalized")))
	}
	s.control(t, "load", "m", gatedJSON(t, `[{"count":1,"kind":"KIND_CPU"}]`, "last=never", "value=5"), 200, "")
	s.control(t, "load", "m", gatedJSON(t, `[{"count":1,"kind":"KIND_CPU"}]`, "value=6"), 200, "") // its finalize waits
	if got := s.value("m"); got != "6" {
		t.Errorf("the model answers %s, want 6", got)
	}
	rewrite(t, filepath.Join(dir, "never"), "")
}

// A model that says of itself that it is not ready is loaded, and takes requests.
func TestModelsThatAreNotReadyAreLoaded(t *testing.T) {
	dir := t.TempDir()
	files := make(map[string]string)
	causes := map[string]string{"no": "returned False", "raises": "ValueError: not yet", "five": "is_ready() must return a boolean value"}
	for name, line := range map[string]string{"no": "return False", "raises": "raise ValueError('not yet')", "five": "return 5", "yes": "return True"} {
		files[name+"/config.pbtxt"] = gatedConfig("")
		files[name+"/1/model.py"] = gatedModel(dir, 1, "\n    def is_ready(self):\n        "+line+"\n")
	}
	s := start(t, repository(t, files)) // which ends if a model has failed
	for name, cause := range causes {
		s.eventually(name+" not to be ready", func() bool {
			status, _ := s.do(http.MethodGet, s.HTTP+"/v2/models/"+name+"/ready", "")
			return status == http.StatusBadRequest
		})
		for _, e := range s.index() {
			if e.Name == name && (e.State != "READY" || !strings.Contains(e.Reason, cause)) {
				t.Errorf("the index has %v, want READY with %q", e, cause)
			}
		}
		if got := s.value(name); got != "1" {
			t.Errorf("%s answers %s", name, got)
		}
	}
	for path := range map[string]bool{"/v2/health/ready": true, "/v2/models/yes/ready": true} {
		if status, text := s.do(http.MethodGet, s.HTTP+path, ""); status != http.StatusOK {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
}

// A configuration from a load stays through loads without one, whatever completes it, until
// the files change or a load fails.
func TestOverridesStayWhileTheFilesAreTheSame(t *testing.T) {
	dir := t.TempDir()
	completes := `
    @staticmethod
    def auto_complete_config(config):
        config.add_output({"name": "Y", "data_type": "TYPE_INT32", "dims": [1]})
        return config
`
	root := reloadable(t)
	for name, text := range map[string]string{"config.pbtxt": `backend: "python"`, "1/model.py": gatedModel(dir, 1, completes)} {
		if err := os.MkdirAll(filepath.Join(root, "completes", "1"), 0o755); err != nil {
			t.Fatal(err)
		}
		rewrite(t, filepath.Join(root, "completes", name), text)
	}
	s := start(t, root, "--model-control-mode=explicit", "--load-model=*")
	config := func(model string) string {
		t.Helper()
		_, text := s.do(http.MethodGet, s.HTTP+"/v2/models/"+model+"/config", "")
		return text
	}
	for model, override := range map[string]string{
		"completes": `{"backend":"python","parameters":{"value":{"string_value":"7"}}}`,
		"simple":    `{"backend":"onnxruntime","max_batch_size":3,"dynamic_batching":{"max_queue_delay_microseconds":"100"}}`,
		"echo":      `{"backend":"echo","output":[{"name":"given","data_type":"TYPE_INT32","dims":[1]}],"input":[{"name":"x","data_type":"TYPE_INT32","dims":[1]}]}`,
	} {
		s.control(t, "load", model, "", 200, "") // in a cluster no worker may have been there at the start
		own := config(model)
		broken := configParameter(t, `{"backend":"nosuch"}`)
		s.control(t, "load", model, configParameter(t, override), 200, "")
		given := config(model)
		s.control(t, "load", model, "", 200, "")
		if got := config(model); given == own || got != given {
			t.Errorf("after a load of %s without a configuration it has %s, want that of the load before, %s", model, got, given)
		}
		s.control(t, "load", model, broken, 400, "load failed for model '"+model+"'")
		s.control(t, "load", model, "", 200, "")
		if got := config(model); got != own {
			t.Errorf("after a load of %s that failed it has %s, want the repository's, %s", model, got, own)
		}
	}
}

// A load of an ensemble loads the steps that have changed, and an unload of a step leaves the
// server ready.
func TestLoadsOfEnsemblesFollowTheirSteps(t *testing.T) {
	dir := t.TempDir()
	const whole = `platform: "ensemble" input { name: "X" data_type: TYPE_INT32 dims: 1 } output { name: "Y" data_type: TYPE_INT32 dims: 1 } ensemble_scheduling { ` +
		`step { model_name: "STEP" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } } }`
	root := repository(t, map[string]string{
		"step/config.pbtxt": gatedConfig(""), "step/1/model.py": gatedModel(dir, 1),
		"ens/config.pbtxt": strings.Replace(whole, "STEP", "step", 1), "ens/1/.keep": "",
		"lost/config.pbtxt": strings.Replace(whole, "STEP", "nowhere", 1), "lost/1/.keep": "",
		"sad/config.pbtxt": strings.Replace(whole, "STEP", "broken", 1), "sad/1/.keep": "",
		"broken/config.pbtxt": gatedConfig(""), "broken/1/model.py": "raise ValueError('no good')",
	})
	s := start(t, root, "--model-control-mode=explicit")
	s.control(t, "load", "ens", "", 200, "")
	rewrite(t, filepath.Join(root, "step", "1", "model.py"), gatedModel(dir, 2))
	s.control(t, "load", "ens", "", 200, "")
	if step, ens := s.value("step"), s.value("ens"); step != "2" || ens != "2" {
		t.Errorf("step and ensemble answer %s and %s, want 2", step, ens)
	}
	rewrite(t, filepath.Join(root, "step", "1", "model.py"), "raise ValueError('no good')")
	s.control(t, "load", "ens", "", 200, "") // the step goes on as it was
	if ens := s.value("ens"); ens != "2" {
		t.Errorf("the ensemble answers %s, want 2", ens)
	}
	s.control(t, "unload", "step", "", 200, "")
	s.untilIndex(func(list []entry) bool {
		unloaded := 0
		for _, e := range list {
			if e.Reason == "unloaded" {
				unloaded++
			}
		}
		return unloaded == 2
	})
	if status, text := s.do(http.MethodGet, s.HTTP+"/v2/health/ready", ""); status != http.StatusOK {
		t.Errorf("after the unload of a step the server is not ready: %d %s", status, text)
	}
	s.control(t, "load", "lost", "", 400, "load failed for model 'lost': ensemble lost contains models that are not available or ambiguous: nowhere")
	s.control(t, "load", "sad", "", 400, "load failed for model 'sad': ensemble 'sad' depends on 'broken' which has no loaded version. "+
		"Model 'broken' loading failed with error: version 1 is at UNAVAILABLE state: ")
}
