package e2e

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const completedModel = `import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(8)
        config.set_dynamic_batching()
        config.add_input({"name": "X", "data_type": "TYPE_INT32", "dims": [1]})
        config.add_output({"name": "Y", "data_type": "TYPE_INT32", "dims": [1]})
        return config

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy() * FACTOR)])
            for r in requests
        ]
`

func triple() string { return multiplying("3") }

func multiplying(factor string) string { return strings.Replace(completedModel, "FACTOR", factor, 1) }

const twoX = `{"inputs":[{"name":"X","datatype":"INT32","shape":[1,1],"data":[2]}]}`

// A Python model without config.pbtxt says its inputs and outputs itself, on a worker
// in whatever process that is.
func TestPythonModelsCompleteTheirConfigurations(t *testing.T) {
	s := start(t, repository(t, map[string]string{
		"triple/1/model.py": triple(),
		"raises/1/model.py": "class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(config):\n        raise ValueError('boom')\n",
	}), "--exit-on-error=false")
	s.until("the model", s.HTTP+"/v2/models/triple/config", func(text string) bool { return strings.Contains(text, `"max_batch_size":8`) })
	s.eventually("an answer", func() bool {
		status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/triple/infer", twoX)
		return status == http.StatusOK && strings.Contains(text, `"data":[6]`)
	})
	s.untilIndex(func(list []entry) bool {
		for _, e := range list {
			if e.Name == "raises" && strings.Contains(e.Reason, "1/model.py: ") && strings.Contains(e.Reason, "ValueError: boom") {
				return true
			}
		}
		return false
	})
}

// TestSavedPythonModelsAreServed saves a model under load: no request fails, and a save
// with a syntax error leaves what was served, with the line in the log.
func TestSavedPythonModelsAreServed(t *testing.T) {
	inOneProcess(t)
	dir := repository(t, map[string]string{"triple/1/model.py": triple()})
	s := start(t, dir, "--watch")
	file := filepath.Join(dir, "triple", "1", "model.py")
	ctx, stop := context.WithCancel(t.Context())
	load := &load{t: t, s: s, stop: stop}
	t.Cleanup(load.end)
	for range 3 {
		load.client(ctx, "HTTP triple", func() error { return load.http(s.HTTP, "triple", twoX) })
	}
	answers := func(want string) {
		t.Helper()
		load.more(20)
		s.eventually("the answer "+want, func() bool {
			status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/triple/infer", twoX)
			if status != http.StatusOK {
				t.Fatalf("%d %s", status, text)
			}
			return strings.Contains(text, `"data":[`+want+`]`)
		})
	}
	answers("6")
	if err := os.WriteFile(file, []byte(multiplying("5")), 0o600); err != nil {
		t.Fatal(err)
	}
	answers("10")
	if err := os.WriteFile(file, []byte(multiplying("5 5")), 0o600); err != nil {
		t.Fatal(err)
	}
	s.eventually("the cause in the log", func() bool { return strings.Contains(s.text(), "model.py, line 1") })
	answers("10")
	if err := os.WriteFile(file, []byte(triple()), 0o600); err != nil {
		t.Fatal(err)
	}
	answers("6")
	load.end()
}

// TestPythonBasedBackendsAreServed has models that hold nothing but data, in whatever
// process the worker is.
func TestPythonBasedBackendsAreServed(t *testing.T) {
	backends := repository(t, map[string]string{"times/model.py": strings.Replace(triple(), "    def execute", `    def initialize(self, args):
        with open(pb_utils.get_model_dir() + "/factor") as file:
            self.factor = int(file.read())

    def execute`, 1)})
	code := filepath.Join(backends, "times", "model.py")
	text, err := os.ReadFile(code)
	if err == nil {
		err = os.WriteFile(code, []byte(strings.Replace(string(text), "* 3", "* self.factor", 1)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, repository(t, map[string]string{
		"seven/config.pbtxt": `backend: "times"`, "seven/1/factor": "7",
		"nine.times/1/factor": "9",
		"other/config.pbtxt":  `backend: "nosuch"`, "other/1/factor": "9",
	}), "--exit-on-error=false", "--backend-directory="+backends)
	for model, want := range map[string]string{"seven": "14", "nine.times": "18"} {
		s.eventually("an answer of "+model, func() bool {
			status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/"+model+"/infer", twoX)
			return status == http.StatusOK && strings.Contains(text, `"data":[`+want+`]`)
		})
	}
	s.untilIndex(func(list []entry) bool {
		return slices.ContainsFunc(list, func(e entry) bool {
			return e.Name == "other" && strings.Contains(e.Reason, "this server has no backend 'nosuch': it has dyna_sequence, echo, ") &&
				strings.Contains(e.Reason, "tensorrt, times, ")
		})
	})
}
