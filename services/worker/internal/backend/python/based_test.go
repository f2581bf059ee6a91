package python_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/python"
)

// basedCode is a backend that reads its models' files, and imports one of its own.
const basedCode = imports + `
import factors
class TritonPythonModel:
    def initialize(self, args):
        with open(os.path.join(pb.get_model_dir(), "offset")) as file:
            self.offset = np.float32(file.read())
        assert args["model_repository"] == os.path.dirname(pb.get_model_dir()), args
        assert __name__ == "model" and os.path.dirname(__file__) != pb.get_model_dir()
    def execute(self, requests):
        return [give(Y=value(r, "X") * factors.FACTOR + self.offset) for r in requests]
`

// basedOn writes a backend, and returns what names it.
func basedOn(t *testing.T, code string, settings map[string]string) map[string]python.Based {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "mine")
	write(t, filepath.Join(dir, "model.py"), code)
	write(t, filepath.Join(dir, "factors.py"), "import numpy\nFACTOR = numpy.float32(10)\n")
	return map[string]python.Based{"mine": {File: filepath.Join(dir, "model.py"), Settings: settings}}
}

func ofMine() modelconfig.Config {
	return modelconfig.Config{Backend: "mine", Inputs: io(tensor.FP32, "X"), Outputs: io(tensor.FP32, "Y")}
}

func TestModelsOfPythonBasedBackendsRunItsCode(t *testing.T) {
	w := run(t, "", options{config: ofMine(), based: basedOn(t, basedCode, nil), files: map[string]string{"1/offset": "3"}})
	if got := w.show(w.infer(ask(floats("X", 1, 2)))); got != "Y[2]=13,23" {
		t.Error(got)
	}
}

func TestPythonBasedBackendsHaveSettingsOfTheirOwn(t *testing.T) {
	based := basedOn(t, basedCode, map[string]string{"python-path": "/nosuch/python", "else": "1"})
	_, err := load(t, "", options{config: ofMine(), based: based, files: map[string]string{"1/offset": "3"}})
	if errs.Of(err) != errs.LibraryMissing || !strings.Contains(err.Error(), "/nosuch/python") {
		t.Errorf("error %v", err)
	}
	based["mine"] = python.Based{File: based["mine"].File, Settings: map[string]string{"stub-timeout-seconds": "none"}}
	if _, err := load(t, "", options{config: ofMine(), based: based}); errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), "--backend-config=mine,stub-timeout-seconds=none") {
		t.Errorf("error %v", err)
	}
}

func TestCodeOfABackendThatIsGoneIsNamed(t *testing.T) {
	based := basedOn(t, basedCode, nil)
	if err := os.Remove(based["mine"].File); err != nil {
		t.Fatal(err)
	}
	if _, err := load(t, "", options{config: ofMine(), based: based}); errs.Of(err) != errs.LoadFailed || !strings.Contains(err.Error(), based["mine"].File) {
		t.Errorf("error %v", err)
	}
}
