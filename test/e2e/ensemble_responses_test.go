package e2e

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// leavesOut is a Python model that gives z for positive numbers alone.
const (
	leavesOut = `
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = request.inputs()[0].as_numpy()
            names = request.requested_output_names()
            outputs = [pb_utils.Tensor("y", x + 1)] if "y" in names else []
            if x.flat[0] > 0 and "z" in names:
                outputs.append(pb_utils.Tensor("z", x + 2))
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
`
	twoOutputs = `
backend: "python"
input [{ name: "x" data_type: TYPE_INT32 dims: [1] }]
output [{ name: "y" data_type: TYPE_INT32 dims: [1] }, { name: "z" data_type: TYPE_INT32 dims: [1] }]
`
	optionalSum = `
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", sum(t.as_numpy() for t in request.inputs()))])
            for request in requests
        ]
`
	optionalInput = `
backend: "python"
input [{ name: "a" data_type: TYPE_INT32 dims: [1] }, { name: "b" data_type: TYPE_INT32 dims: [1] optional: true }]
output [{ name: "y" data_type: TYPE_INT32 dims: [1] }]
`
)

// What a step leaves out is missing in the ensemble's response, or to the steps that read it.
func TestEnsemblesOfStepsThatLeaveOutputsOut(t *testing.T) {
	ensemble := func(outputs string, steps ...string) string {
		text := strings.Replace(ensembleOf("x", "y", steps...), "max_batch_size: 1\n", "", 1)
		for _, name := range strings.Fields(outputs) {
			text += fmt.Sprintf("output [{ name: %q data_type: TYPE_INT32 dims: [1] }]\n", name)
		}
		return text
	}
	s := start(t, repository(t, map[string]string{
		"some/config.pbtxt": twoOutputs, "some/1/model.py": leavesOut, "sum/config.pbtxt": optionalInput, "sum/1/model.py": optionalSum,
		"echo/config.pbtxt": echo(0), "echo/1/.keep": "",
		"own/config.pbtxt": ensemble("z", step("some", "x=x", "y=y z=z")), "own/1/.keep": "",
		"outer/config.pbtxt": ensemble("z", step("own", "x=x", "y=y z=z")), "outer/1/.keep": "",
		"needs/config.pbtxt": ensemble("", step("some", "x=x", "z=middle"), step("echo", "x=middle", "y=y")), "needs/1/.keep": "",
		"may/config.pbtxt": ensemble("", step("some", "x=x", "y=a z=b"), step("sum", "a=a b=b", "y=y")), "may/1/.keep": "",
	}))
	const missing = "[request id: <id_unknown>] expected 1 inputs but got 0 inputs for model 'echo'. Got input(s) [], but missing required input(s) ['x']. Please provide all required input(s)."
	y, z := `{"name":"y","datatype":"INT32","shape":[1],"data":[%d]}`, `{"name":"z","datatype":"INT32","shape":[1],"data":[%d]}`
	for _, tt := range []struct {
		model   string
		x       int
		outputs string
		status  int
		want    string
	}{
		{"own", 5, "", http.StatusOK, fmt.Sprintf(`"outputs":[`+y+","+z+"]", 6, 7)},
		{"own", -5, "", http.StatusOK, fmt.Sprintf(`"outputs":[`+y+"]", -4)},
		{"own", -5, "z", http.StatusOK, `{"model_name":"own","model_version":"1","outputs":[]}`},
		{"own", -5, "y", http.StatusOK, fmt.Sprintf(`"outputs":[`+y+"]", -4)},
		{"outer", -5, "", http.StatusOK, fmt.Sprintf(`"outputs":[`+y+"]", -4)},
		{"needs", 5, "", http.StatusOK, fmt.Sprintf(`"outputs":[`+y+"]", 7)},
		{"needs", -5, "", http.StatusBadRequest, `{"error":"in ensemble 'needs', ` + missing + `"}`},
		{"may", 5, "", http.StatusOK, fmt.Sprintf(`"outputs":[`+y+"]", 13)},
		{"may", -5, "", http.StatusOK, fmt.Sprintf(`"outputs":[`+y+"]", -4)},
	} {
		body := fmt.Sprintf(`{"inputs":[{"name":"x","datatype":"INT32","shape":[1],"data":[%d]}]`, tt.x)
		if tt.outputs != "" {
			body += fmt.Sprintf(`,"outputs":[{"name":%q}]`, tt.outputs)
		}
		status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/"+tt.model+"/infer", body+"}")
		if status != tt.status || !strings.Contains(text, tt.want) {
			t.Errorf("%s of %d: %d %s, want %d with %s", tt.model, tt.x, status, text, tt.status, tt.want)
		}
	}
	s.expect("Composing models did not output tensor z")
	s.wantMetrics(`nv_inference_request_success{model="own",version="1"} 5`, `nv_inference_request_failure{model="needs",reason="OTHER",version="1"} 1`)
}

// Responses of ensembles have the sequence of their outputs, whether the request is of a
// sequence or not.
func TestEnsemblesRespondWithTheirSequence(t *testing.T) {
	s := start(t, repository(t, map[string]string{
		"sums/config.pbtxt": summing, "sums/1/.keep": "", "echo/config.pbtxt": echo(0), "echo/1/.keep": "",
		"summed/config.pbtxt": ensembleOf("x", "sum", step("echo", "x=x", "y=each"), step("sums", "INPUT=each", "OUTPUT=sum")), "summed/1/.keep": "",
		"outer/config.pbtxt": ensembleOf("x", "sum", step("summed", "x=x", "sum=sum")), "outer/1/.keep": "",
		"plain/config.pbtxt": ensembleOf("x", "y", step("echo", "x=x", "y=y")), "plain/1/.keep": "",
	}))
	for _, tt := range []struct{ model, request, response string }{
		{"summed", `"sequence_id":5,"sequence_start":true`, `"parameters":{"sequence_id":5,"sequence_start":true,"sequence_end":false}`},
		{"summed", `"sequence_id":5`, `"parameters":{"sequence_id":5,"sequence_start":false,"sequence_end":false}`},
		{"summed", `"sequence_id":5,"sequence_end":true`, `"parameters":{"sequence_id":5,"sequence_start":false,"sequence_end":true}`},
		{"summed", `"sequence_id":"five","sequence_start":true,"sequence_end":true`, `"parameters":{"sequence_id":"five","sequence_start":true,"sequence_end":true}`},
		{"outer", `"sequence_id":6,"sequence_start":true,"sequence_end":true`, `"parameters":{"sequence_id":6,"sequence_start":true,"sequence_end":true}`},
		{"plain", "", `"parameters":{"sequence_id":0,"sequence_start":false,"sequence_end":false}`},
	} {
		body := strings.Replace(one, "{", `{"parameters":{`+tt.request+`},`, 1)
		if status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/"+tt.model+"/infer", body); status != http.StatusOK || !strings.Contains(text, tt.response) {
			t.Errorf("%s with %s: %d %s, want %s", tt.model, tt.request, status, text, tt.response)
		}
	}
}

// failing is a decoupled Python model that gives as many responses as its input says, and
// fails after the second.
const failing = `
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            x = request.inputs()[0].as_numpy()
            sender, n = request.get_response_sender(), int(x.flat[0])
            for i in range(n):
                if i == 2:
                    sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("it fails after two")), flags=FINAL)
                    break
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", x * 0 + i)]))
            else:
                sender.send(flags=FINAL)
`

// The last response of a decoupled ensemble says that it is the last one, where no step
// is under way any more when it is complete. Responses come before an error that follows them.
func TestDecoupledEnsemblesEnd(t *testing.T) {
	const config = `
backend: "python"
model_transaction_policy { decoupled: true }
input [{ name: "x" data_type: TYPE_INT32 dims: [1] }]
output [{ name: "y" data_type: TYPE_INT32 dims: [1] }]
`
	s := start(t, repository(t, map[string]string{
		"three/config.pbtxt": several(3), "three/1/.keep": "", "none/config.pbtxt": several(0), "none/1/.keep": "", "echo/config.pbtxt": echo(0), "echo/1/.keep": "",
		"fails/config.pbtxt": config, "fails/1/model.py": failing,
		"direct/config.pbtxt": ensembleOf("x", "y", step("three", "x=x", "y=y")), "direct/1/.keep": "",
		"outer/config.pbtxt": ensembleOf("x", "y", step("direct", "x=x", "y=y")), "outer/1/.keep": "",
		"empty/config.pbtxt": ensembleOf("x", "y", step("none", "x=x", "y=y")), "empty/1/.keep": "",
		"failed/config.pbtxt": strings.Replace(ensembleOf("x", "y", step("fails", "x=x", "y=y")), "max_batch_size: 1\n", "", 1), "failed/1/.keep": "",
	}))
	for _, tt := range []struct {
		model string
		x     uint32
		shape []int64
		want  string
	}{
		{"direct", 7, []int64{1, 1}, "7 7 7!"},
		{"outer", 7, []int64{1, 1}, "7 7 7!"},
		{"empty", 7, []int64{1, 1}, "!"},
		{"failed", 2, []int64{1}, "0 1 !"},
		{"failed", 3, []int64{1}, "0 1 in ensemble 'failed', it fails after two !"},
	} {
		if got := s.responses(t, tt.model, tt.x, tt.shape); got != tt.want {
			t.Errorf("%s of %d gave %q, want %q", tt.model, tt.x, got, tt.want)
		}
	}
}

// responses are the values that a model gives to a request of its own stream which asks to
// be notified of the end. A mark follows the response that is the final one.
func (s *server) responses(t *testing.T, model string, x uint32, shape []int64) string {
	t.Helper()
	stream := s.openStream(t)
	err := stream.Send(&inference.ModelInferRequest{
		ModelName: model, Inputs: []*inference.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "INT32", Shape: shape}},
		RawInputContents: [][]byte{binary.LittleEndian.AppendUint32(nil, x)},
		Parameters: map[string]*inference.InferParameter{
			"triton_enable_empty_final_response": {ParameterChoice: &inference.InferParameter_BoolParam{BoolParam: true}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for {
		r, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return strings.Join(got, " ")
		case err != nil:
			t.Fatal(err)
		case r.GetErrorMessage() != "":
			got = append(got, r.GetErrorMessage())
		}
		value := ""
		for _, raw := range r.GetInferResponse().GetRawOutputContents() {
			value = fmt.Sprint(binary.LittleEndian.Uint32(raw))
		}
		if r.GetInferResponse().GetParameters()["triton_final_response"].GetBoolParam() {
			value += "!"
		}
		if value != "" {
			got = append(got, value)
		}
	}
}

const (
	probabilities = `
backend: "echo"
max_batch_size: 4
input [{ name: "x" data_type: TYPE_FP32 dims: [3] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [3] label_filename: "labels.txt" }]
`
	ofProbabilities = `
platform: "ensemble"
max_batch_size: 4
input [{ name: "x" data_type: TYPE_FP32 dims: [3] }]
output [{ name: "p" data_type: TYPE_FP32 dims: [3] %s }]
ensemble_scheduling { %s }
`
)

// An ensemble's output has the labels of the step's that it is, unless it has its own.
func TestEnsemblesHaveTheLabelsOfTheirSteps(t *testing.T) {
	s := start(t, repository(t, map[string]string{
		"model/config.pbtxt": probabilities, "model/1/.keep": "", "model/labels.txt": "cat\ndog\nfox\n",
		"inner/config.pbtxt": fmt.Sprintf(ofProbabilities, "", step("model", "x=x", "y=p")), "inner/1/.keep": "",
		"outer/config.pbtxt": fmt.Sprintf(ofProbabilities, "", step("inner", "x=x", "p=p")), "outer/1/.keep": "",
		"own/config.pbtxt": fmt.Sprintf(ofProbabilities, `label_filename: "own.txt"`, step("model", "x=x", "y=p")), "own/1/.keep": "", "own/own.txt": "A\nB\nC\n",
	}))
	const body = `{"inputs":[{"name":"x","datatype":"FP32","shape":[1,3],"data":[0.5,2,1]}],"outputs":[{"name":"p","parameters":{"classification":2}}]}`
	for model, want := range map[string]string{
		"inner": `["2.000000:1:dog","1.000000:2:fox"]`, "outer": `["2.000000:1:dog","1.000000:2:fox"]`, "own": `["2.000000:1:B","1.000000:2:C"]`,
	} {
		if status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/"+model+"/infer", body); status != http.StatusOK || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s, want %s", model, status, text, want)
		}
	}
}

// The steps of an ensemble see its inputs, and give its outputs, as they are reshaped.
func TestEnsemblesReshape(t *testing.T) {
	ensemble := func(in, out string) string {
		return strings.NewReplacer(`name: "x" data_type: TYPE_INT32 dims: [1]`, `name: "x" data_type: TYPE_INT32 `+in,
			`name: "y" data_type: TYPE_INT32 dims: [1]`, `name: "y" data_type: TYPE_INT32 `+out).Replace(ensembleOf("x", "y", step("flat", "x=x", "y=y")))
	}
	s := start(t, repository(t, map[string]string{
		"flat/config.pbtxt": strings.ReplaceAll(echo(0), "dims: [1]", "dims: [4]"), "flat/1/.keep": "",
		"in/config.pbtxt": ensemble("dims: [2,2] reshape { shape: [4] }", "dims: [4]"), "in/1/.keep": "",
		"out/config.pbtxt": ensemble("dims: [4]", "dims: [2,2] reshape { shape: [4] }"), "out/1/.keep": "",
	}))
	for _, tt := range []struct {
		model, shape string
		status       int
		want         string
	}{
		{"in", "[1,2,2]", http.StatusOK, `"shape":[1,4],"data":[1,2,3,4]`},
		{"in", "[1,4]", http.StatusBadRequest, "unexpected shape for input 'x' for model 'in'. Expected [-1,2,2], got [1,4]."},
		{"out", "[1,4]", http.StatusOK, `"shape":[1,2,2],"data":[1,2,3,4]`},
	} {
		body := `{"inputs":[{"name":"x","datatype":"INT32","shape":` + tt.shape + `,"data":[1,2,3,4]}]}`
		if status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/"+tt.model+"/infer", body); status != tt.status || !strings.Contains(text, tt.want) {
			t.Errorf("%s of %s: %d %s, want %d with %s", tt.model, tt.shape, status, text, tt.status, tt.want)
		}
	}
}
