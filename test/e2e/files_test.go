package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// serveFiles starts the program on arguments instead of a repository.
func serveFiles(t *testing.T, arguments ...string) *server {
	t.Helper()
	inOneProcess(t)
	p := run(t, "nereid", slices.Concat([]string{"serve"}, arguments, []string{"--log-format=json"}, anyPorts())...)
	s := &server{process: p, models: p, all: []*process{p}}
	s.expect("started")
	s.HTTP, s.GRPC = s.said().HTTP, s.said().GRPC
	return s
}

// place links a file of the examples to where a test wants it.
func place(t *testing.T, example, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(examples(t), example))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

const addSubJSON = `{"inputs": [
	{"name": "INPUT0", "datatype": "INT32", "shape": [1, 16], "data": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]},
	{"name": "INPUT1", "datatype": "INT32", "shape": [1, 16], "data": [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}]}`

// Files, a directory as KServe mounts it, and a Python model are served where they lie,
// follow their files, and leave nothing behind.
func TestModelFilesAreServedWithoutARepository(t *testing.T) {
	dir, temporary := t.TempDir(), t.TempDir()
	t.Setenv("TMPDIR", temporary)
	place(t, "simple/1/model.onnx", filepath.Join(dir, "sum.onnx"))
	place(t, "simple/1/model.onnx", filepath.Join(dir, "mnt", "models", "model.onnx"))
	place(t, "words/1/model.py", filepath.Join(dir, "words", "model.py"))
	s := serveFiles(t, filepath.Join(dir, "sum.onnx"), "mounted="+filepath.Join(dir, "mnt", "models"), filepath.Join(dir, "words", "model.py"),
		"--model-control-mode=poll", "--repository-poll-secs=1", "--backend-config=python,python-path="+os.Getenv("NEREID_PYTHON"))
	for _, model := range []string{"sum", "mounted"} {
		status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/"+model+"/infer", addSubJSON)
		if status != http.StatusOK || !strings.Contains(text, "[2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]") {
			t.Errorf("%s: %d %s", model, status, text)
		}
	}
	if _, text := s.do(http.MethodGet, s.HTTP+"/v2/models/words/config", ""); !strings.Contains(text, `"backend":"python"`) {
		t.Errorf("the Python model is %s", text)
	}
	place(t, "digits/1/model.onnx", filepath.Join(dir, "sum.onnx"))
	s.until("the file's new content", s.HTTP+"/v2/models/sum", func(text string) bool { return strings.Contains(text, `"name":"probabilities"`) })
	s.signal(syscall.SIGTERM)
	if status := s.exit(); status != 0 {
		t.Errorf("the exit status is %d", status)
	}
	if left, _ := filepath.Glob(filepath.Join(temporary, "nereid-models-*")); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}
