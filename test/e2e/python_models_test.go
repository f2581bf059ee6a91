package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// pythonModels starts a deployment on a copy of the Python models of the tests.
func pythonModels(t *testing.T) *server {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "python"))); err != nil {
		t.Fatal(err)
	}
	// nested is a second model of the source of calls, so that one can call the other.
	if err := os.CopyFS(filepath.Join(dir, "nested"), os.DirFS(filepath.Join(dir, "calls"))); err != nil {
		t.Fatal(err)
	}
	return start(t, dir)
}

// TestRealClientsOfPythonModels has the real clients use Python models: tensors of all
// sizes, many requests at once, streams, parameters and errors.
func TestRealClientsOfPythonModels(t *testing.T) {
	s := pythonModels(t)
	python(t, []string{"HTTP_URL=" + s.HTTP, "GRPC_URL=" + s.GRPC}, "test/e2e/clients/test_python.py", "-v", "Models")
	s.wantMetrics(inFlight(0))
}

// TestPythonModelsCallOthers has Python models call others in each of Triton's ways.
func TestPythonModelsCallOthers(t *testing.T) {
	s := pythonModels(t)
	python(t, []string{"HTTP_URL=" + s.HTTP, "GRPC_URL=" + s.GRPC}, "test/e2e/clients/test_python.py", "-v", "Calls")
	s.wantMetrics(inFlight(0))
}

// TestPythonModelsControlOthers has a Python model load another from the contents of
// files, under explicit control.
func TestPythonModelsControlOthers(t *testing.T) {
	const model = `import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        source = b"class TritonPythonModel:\n    def execute(self, requests):\n        return None\n"
        config = '{"backend": "python", "output": [{"name": "Y", "data_type": "TYPE_BOOL", "dims": [-1]}]}'
        pb_utils.load_model("made", config=config, files={"file:1/model.py": source})
        ready = [pb_utils.is_model_ready("made"), pb_utils.is_model_ready("made", "2")]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array(ready))]) for _ in requests]
`
	dir := repository(t, map[string]string{
		"maker/config.pbtxt": `backend: "python" output { name: "Y" data_type: TYPE_BOOL dims: -1 }`, "maker/1/model.py": model,
	})
	s := start(t, dir, "--model-control-mode=explicit", "--load-model=maker", "--allow-model-code=true")
	s.eventually("the model to be ready", func() bool { // which a worker that comes later has looked at first
		status, _ := s.do(http.MethodGet, s.HTTP+"/v2/models/maker/ready", "")
		return status == http.StatusOK
	})
	status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/maker/infer", `{"inputs":[]}`)
	if status != http.StatusOK || !strings.Contains(text, `"data":[true,false]`) {
		t.Errorf("%d %s", status, text)
	}
	s.wantIndex(entry{"made", "1", "READY", ""}, entry{"maker", "1", "READY", ""})
}
