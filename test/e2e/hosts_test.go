package e2e

import (
	"bytes"
	"encoding/json"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Models of frameworks are made by the framework, which says too what it gives for a
// request.
type (
	hosted struct {
		Model           string
		Inputs, Outputs []hostedTensor
		Error, Refused  string
	}
	hostedTensor struct {
		Name     string `json:"name"`
		Datatype string `json:"datatype"`
		Shape    []int  `json:"shape"`
		Data     []any  `json:"data"`
	}
)

func TestPyTorchModelsAreServed(t *testing.T)    { serveHosted(t, "pytorch") }
func TestTensorFlowModelsAreServed(t *testing.T) { serveHosted(t, "tensorflow") }
func TestOpenVINOModelsAreServed(t *testing.T)   { serveHosted(t, "openvino") }

// serveHosted serves the models of a framework that the Python named by
// NEREID_<FRAMEWORK>_PYTHON has.
func serveHosted(t *testing.T, framework string) {
	variable := "NEREID_" + strings.ToUpper(framework) + "_PYTHON"
	interpreter := os.Getenv(variable)
	if interpreter == "" {
		t.Skip(variable + " names no Python: make hosts-test does")
	}
	models := t.TempDir()
	var problems bytes.Buffer
	command := exec.Command(interpreter, "testdata/hosts/of_"+framework+".py", models, filepath.Join(root(t), "examples", "models", "digits", "1", "model.onnx"))
	command.Stderr = &problems
	made, err := command.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, problems.Bytes())
	}
	s := start(t, models, "--exit-on-error=false", "--strict-readiness=false", "--backend-config="+framework+",python-path="+interpreter,
		"--backend-config="+framework+",stub-timeout-seconds=600") // machines may be slow and busy
	var requests sync.WaitGroup
	defer requests.Wait()
	for line := range bytes.Lines(made) {
		var h hosted
		if err := json.Unmarshal(line, &h); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if h.Refused != "" {
			s.untilIndex(func(list []entry) bool {
				return slices.ContainsFunc(list, func(e entry) bool { return e.Name == h.Model && strings.Contains(e.Reason, h.Refused) })
			})
			continue
		}
		s.eventually(h.Model+" to be ready", func() bool {
			status, _ := s.do(http.MethodGet, s.HTTP+"/v2/models/"+h.Model+"/ready", "")
			return status == http.StatusOK
		})
		requests.Go(func() { s.asHosted(h) })
	}
}

// asHosted sends a request, and compares what comes with what the framework gave.
func (s *server) asHosted(h hosted) {
	body, err := json.Marshal(map[string]any{"inputs": h.Inputs})
	if err != nil {
		s.t.Error(err)
		return
	}
	status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/"+h.Model+"/infer", string(body))
	if h.Error != "" {
		if status == http.StatusOK || !strings.Contains(text, h.Error) {
			s.t.Errorf("%s: %d %s, want %q", h.Model, status, text, h.Error)
		}
		return
	}
	var got struct{ Outputs []hostedTensor }
	if err := json.Unmarshal([]byte(text), &got); err != nil || status != http.StatusOK || len(got.Outputs) != len(h.Outputs) {
		s.t.Errorf("%s: %d %s", h.Model, status, text)
		return
	}
	for _, want := range h.Outputs {
		i := slices.IndexFunc(got.Outputs, func(o hostedTensor) bool { return o.Name == want.Name })
		if i < 0 || !want.near(got.Outputs[i]) {
			s.t.Errorf("%s: %v, want %v", h.Model, got.Outputs, want)
		}
	}
}

// near reports whether tensors differ by no more than the batches do in which they were
// computed.
func (a hostedTensor) near(b hostedTensor) bool {
	return a.Datatype == b.Datatype && slices.Equal(a.Shape, b.Shape) && slices.EqualFunc(a.Data, b.Data, func(x, y any) bool {
		f, isNumber := x.(float64)
		g, isOther := y.(float64)
		if !isNumber || !isOther {
			return x == y
		}
		return math.Abs(f-g) <= 1e-5*max(1, math.Abs(f))
	})
}

// TestMissingFrameworksAreNamed has the models of frameworks that are not there say what
// to install.
func TestMissingFrameworksAreNamed(t *testing.T) {
	tensors := "input { name: \"INPUT__0\" data_type: TYPE_FP32 dims: 4 }\noutput { name: \"OUTPUT__0\" data_type: TYPE_FP32 dims: 4 }\n"
	s := start(t, repository(t, map[string]string{
		"torch/1/model.pt": "", "torch/config.pbtxt": "platform: \"pytorch_libtorch\"\n" + tensors,
		"flow/1/model.savedmodel/saved_model.pb": "", "flow/config.pbtxt": "platform: \"tensorflow_savedmodel\"\n" + tensors,
		"vino/1/model.xml": "",
		"aoti/1/model.pt2": "", "aoti/config.pbtxt": tensors,
	}), "--exit-on-error=false", "--strict-readiness=false")
	for model, want := range map[string]string{
		"torch": "-m pip install torch)", "flow": "-m pip install tensorflow-cpu)", "vino": "-m pip install openvino)",
		"aoti": "-m pip install torch)",
	} {
		s.untilIndex(func(list []entry) bool {
			return slices.ContainsFunc(list, func(e entry) bool { return e.Name == model && strings.Contains(e.Reason, want) })
		})
	}
}
