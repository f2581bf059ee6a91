package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/testkit/objectstore"
)

// ownModel answers with what a package says that its environment alone has.
const ownModel = `import numpy as np
import own
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([own.NAME], np.object_))]) for _ in requests]
`

// ownConfig names the environment of the model.
func ownConfig(path string) string {
	return `
backend: "python"
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } ]
parameters { key: "EXECUTION_ENV_PATH" value { string_value: "` + path + `" } }
`
}

// environment makes a virtual environment that has the tests' numpy, and a package of
// its own that says its name.
func environment(t *testing.T, dir, name string) {
	t.Helper()
	python := interpreter(t)
	if out, err := exec.CommandContext(t.Context(), python, "-m", "venv", "--without-pip", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	numpy, err := exec.CommandContext(t.Context(), python, "-c", "import numpy, pathlib; print(pathlib.Path(numpy.__file__).parent.parent, end='')").Output()
	if err != nil {
		t.Fatal(err)
	}
	packages, err := filepath.Glob(filepath.Join(dir, "lib", "python3*", "site-packages"))
	if err != nil || len(packages) != 1 {
		t.Fatalf("packages are in %v: %v", packages, err)
	}
	for file, text := range map[string]string{"numpy.pth": string(numpy), "own.py": "NAME = '" + name + "'\n"} {
		if err := os.WriteFile(filepath.Join(packages[0], file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// packed is an environment as conda pack packs one.
func packed(t *testing.T, name string) []byte {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "packed")
	environment(t, dir, name)
	var archive bytes.Buffer
	zipped := gzip.NewWriter(&archive)
	files := tar.NewWriter(zipped)
	if err := files.AddFS(os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := files.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	return archive.Bytes()
}

// wantOwn waits until the model answers from the environment of that name.
func (s *server) wantOwn(model, name string) {
	s.t.Helper()
	s.eventually("the answer "+name, func() bool {
		status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/"+model+"/infer", `{"inputs":[{"name":"IN","datatype":"INT32","shape":[1],"data":[1]}]}`)
		if status != http.StatusOK {
			s.t.Fatalf("%s: %d %s", model, status, text)
		}
		return strings.Contains(text, `"data":["`+name+`"]`)
	})
}

// TestPythonModelsHaveTheirOwnEnvironments has models run in virtual environments that
// are directories and archives; another archive is another content of the model.
func TestPythonModelsHaveTheirOwnEnvironments(t *testing.T) {
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	environment(t, elsewhere, "elsewhere")
	dir := repository(t, map[string]string{
		"elsewhere/config.pbtxt": ownConfig(elsewhere), "elsewhere/1/model.py": ownModel,
		"within/config.pbtxt": ownConfig("$$TRITON_MODEL_DIRECTORY/own"), "within/1/model.py": ownModel,
		"packed/config.pbtxt": ownConfig("$$TRITON_MODEL_DIRECTORY/own.tar.gz"), "packed/1/model.py": ownModel,
		"packed/own.tar.gz": string(packed(t, "first")),
	})
	environment(t, filepath.Join(dir, "within", "own"), "within")
	s := start(t, dir, "--model-control-mode=explicit", "--load-model=*")
	s.wantOwn("elsewhere", "elsewhere")
	s.wantOwn("within", "within")
	s.wantOwn("packed", "first")
	rewrite(t, filepath.Join(dir, "packed", "own.tar.gz"), string(packed(t, "second")))
	s.control(t, "load", "packed", "", http.StatusOK, "")
	s.wantOwn("packed", "second")
}

// TestPythonEnvironmentsComeFromObjectStores has an archive come with its model.
func TestPythonEnvironmentsComeFromObjectStores(t *testing.T) {
	store := objectstore.Start(t)
	store.Put("repo/packed/config.pbtxt", ownConfig("$$TRITON_MODEL_DIRECTORY/own.tar.gz"))
	store.Put("repo/packed/1/model.py", ownModel)
	store.Put("repo/packed/own.tar.gz", string(packed(t, "first")))
	store.Put("repo/absent/config.pbtxt", ownConfig("$$TRITON_MODEL_DIRECTORY/own"))
	store.Put("repo/absent/1/model.py", ownModel)
	s := start(t, store.URL()+"/repo", "--cache-dir="+t.TempDir(), "--model-control-mode=explicit", "--load-model=packed")
	s.wantOwn("packed", "first")
	store.Put("repo/packed/own.tar.gz", string(packed(t, "second")))
	s.control(t, "load", "packed", "", http.StatusOK, "")
	s.wantOwn("packed", "second")
	s.control(t, "load", "absent", "", http.StatusBadRequest, "with a model from an object store comes an archive")
}
