package e2e

import (
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
)

// A model file alone is served, in the shapes that the file declares.
func TestModelsWithoutConfigurationAreServed(t *testing.T) {
	inferred := onnxmodel.Relu(tensor.FP32, "n", 2)
	inferred.Graph.Outputs[0].Dims = onnxmodel.Dims("n", "unknown") // which the session knows to be 2
	s := start(t, repository(t, map[string]string{
		"inferred/1/model.onnx": string(inferred.Bytes()),
		"open/1/model.onnx":     string(onnxmodel.Relu(tensor.FP32, "n", 2).Bytes()),
		"row/1/model.onnx":      string(onnxmodel.Relu(tensor.FP32, "n").Bytes()),
		"fixed/1/model.onnx":    string(onnxmodel.Relu(tensor.FP32, 2).Bytes()),
		"scalar/1/model.onnx":   string(onnxmodel.Sum(tensor.FP32, 2).Bytes()),
	}))
	for model, tt := range map[string]struct{ shape, data, metadata, answer string }{
		"open":     {"[1,2]", "[-1,2]", `"shape":[-1,2]`, `"shape":[1,2],"data":[0.0,2.0]`},
		"inferred": {"[1,2]", "[-1,2]", `"shape":[-1,-1]`, `"shape":[1,2],"data":[0.0,2.0]`},
		"row":      {"[2,1]", "[-1,2]", `"shape":[-1,1]`, `"shape":[2,1],"data":[0.0,2.0]`},
		"fixed":    {"[2]", "[-1,2]", `"shape":[2]`, `"shape":[2],"data":[0.0,2.0]`},
		"scalar":   {"[2]", "[-1,2]", `"outputs":[{"name":"OUTPUT0","datatype":"FP32","shape":[1]}]`, `"shape":[1],"data":[1.0]`},
	} {
		if _, text := s.do(http.MethodGet, s.HTTP+"/v2/models/"+model, ""); !strings.Contains(strings.ReplaceAll(text, " ", ""), tt.metadata) {
			t.Errorf("%s: metadata %s lacks %s", model, text, tt.metadata)
		}
		body := `{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":` + tt.shape + `,"data":` + tt.data + `}]}`
		status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/"+model+"/infer", body)
		if status != http.StatusOK || !strings.Contains(strings.ReplaceAll(text, " ", ""), tt.answer) {
			t.Errorf("%s: %d %s lacks %s", model, status, text, tt.answer)
		}
	}
}

func TestConfigurationsAreChosenByName(t *testing.T) {
	s := start(t, repository(t, map[string]string{
		"m/1/model.onnx":      string(onnxmodel.Relu(tensor.FP32, "n", 2).Bytes()),
		"m/config.pbtxt":      "max_batch_size: 3",
		"m/configs/big.pbtxt": "max_batch_size: 64",
		"n/1/model.onnx":      string(onnxmodel.Relu(tensor.FP32, "n", 2).Bytes()),
		"n/config.pbtxt":      "max_batch_size: 3",
	}), "--model-config-name=big")
	for model, want := range map[string]string{"m": `"max_batch_size":64`, "n": `"max_batch_size":3`} {
		if _, text := s.do(http.MethodGet, s.HTTP+"/v2/models/"+model+"/config", ""); !strings.Contains(text, want) {
			t.Errorf("%s: %s lacks %s", model, text, want)
		}
	}
}

// What check says of a model is what the server says when it refuses it.
func TestCheckSaysWhatTheServerSays(t *testing.T) {
	dir := repository(t, map[string]string{
		"bare/1/model.onnx": string(onnxmodel.Relu(tensor.FP32, "n", 2).Bytes()),
		"bad/1/model.onnx":  string(onnxmodel.Relu(tensor.FP32, 2).Bytes()),
		"bad/config.pbtxt":  "max_batch_size: 2\nmetric_tags { key: \"a-b\" value: \"c\" }",
	})
	for _, tt := range []struct {
		flag string
		want []string
	}{
		{"--disable-auto-complete-config", []string{"bare", "config.pbtxt does not exist", "the configuration has no 'input'"}},
		{"--strict-model-config=false", []string{"model does not support batching while non-zero max_batch_size is specified", "metric tag 'a-b' cannot be a metric label"}},
	} {
		report, err := exec.CommandContext(t.Context(), program(t, "nereid"), "check", dir, tt.flag).CombinedOutput()
		if err == nil {
			t.Errorf("%s: check succeeds", tt.flag)
		}
		s := start(t, dir, tt.flag, "--exit-on-error=false")
		_, index := s.do(http.MethodPost, s.HTTP+"/v2/repository/index", "")
		for _, want := range tt.want {
			if !strings.Contains(string(report), want) || !strings.Contains(index, want) {
				t.Errorf("%s: %q is not in the report or not in the index\n%s\n%s", tt.flag, want, report, index)
			}
		}
	}
}
