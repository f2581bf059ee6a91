package e2e

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// step writes a step with its maps, such as "x=a y=b".
func step(model, inputs, outputs string) string {
	text := "step [{ model_name: \"" + model + "\" model_version: -1\n"
	for field, maps := range map[string]string{"input_map": inputs, "output_map": outputs} {
		for _, pair := range strings.Fields(maps) {
			of, tensor, _ := strings.Cut(pair, "=")
			text += fmt.Sprintf("%s { key: %q value: %q }\n", field, of, tensor)
		}
	}
	return text + "}]\n"
}

func ensembleOf(input, output string, steps ...string) string {
	return fmt.Sprintf(`
platform: "ensemble"
max_batch_size: 1
input [{ name: %q data_type: TYPE_INT32 dims: [1] }]
output [{ name: %q data_type: TYPE_INT32 dims: [1] }]
ensemble_scheduling { %s }
`, input, output, strings.Join(steps, ""))
}

const fanOut = `
platform: "ensemble"
input [{ name: "IN" data_type: TYPE_INT32 dims: [-1] }, { name: "DELAY" data_type: TYPE_UINT32 dims: [-1] }, { name: "WAIT" data_type: TYPE_UINT32 dims: [1] }]
output [{ name: "OUT" data_type: TYPE_INT32 dims: [1] }, { name: "IDX" data_type: TYPE_UINT32 dims: [1] }]
model_transaction_policy { decoupled: true }
`

// Tensors go from step to step, also into ensembles within ensembles, and what a step
// fails by fails its ensemble.
func TestEnsemblesRunTheirSteps(t *testing.T) {
	s := start(t, repository(t, map[string]string{
		"echo/config.pbtxt": echo(0), "echo/1/.keep": "",
		"wide/config.pbtxt": strings.ReplaceAll(echo(0), "dims: [1]", "dims: [2]"), "wide/1/.keep": "",
		"chain/config.pbtxt": ensembleOf("a", "c", step("echo", "x=a", "y=b"), step("echo", "x=b", "y=c")), "chain/1/.keep": "",
		"nested/config.pbtxt":  ensembleOf("first", "last", step("chain", "a=middle", "c=last"), step("chain", "a=first", "c=middle")),
		"nested/1/.keep":       "",
		"misfit/config.pbtxt":  strings.Replace(ensembleOf("a", "b", step("wide", "x=a", "y=b")), "dims: [1]", "dims: [-1]", 2),
		"misfit/1/.keep":       "",
		"waiting/config.pbtxt": ensembleOf("a", "b", step("nowhere", "x=a", "y=b")), "waiting/1/.keep": "",
	}), "--exit-on-error=false")
	for model, tt := range map[string]struct {
		input  string
		status int
		want   string
	}{
		"chain":   {"a", http.StatusOK, `"outputs":[{"name":"c","datatype":"INT32","shape":[1,1],"data":[7]}]`},
		"nested":  {"first", http.StatusOK, `"outputs":[{"name":"last","datatype":"INT32","shape":[1,1],"data":[7]}]`},
		"misfit":  {"a", http.StatusBadRequest, "in ensemble 'misfit', [request id: <id_unknown>] unexpected shape for input 'x' for model 'wide'. Expected [-1,2], got [1,1]."},
		"waiting": {"a", http.StatusNotFound, "'waiting' is not found"},
	} {
		status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/"+model+"/infer", strings.Replace(one, `"x"`, `"`+tt.input+`"`, 1))
		if status != tt.status || !strings.Contains(text, tt.want) {
			t.Errorf("%s: %d %s, want %d with %s", model, status, text, tt.status, tt.want)
		}
	}
	if _, text := s.do(http.MethodPost, s.HTTP+"/v2/repository/index", ""); !strings.Contains(text, "ensemble waiting contains models that are not available or ambiguous: nowhere") {
		t.Errorf("the index does not say what is missing: %s", text)
	}
	s.wantMetrics(
		`nv_inference_request_success{model="echo",version="1"} 6`, `nv_inference_request_success{model="chain",version="1"} 3`,
		`nv_inference_request_success{model="nested",version="1"} 1`, `nv_inference_count{model="chain",version="1"} 3`, `nv_inference_exec_count{model="chain",version="1"} 3`,
		`nv_inference_request_failure{model="misfit",reason="OTHER",version="1"} 1`,
	)
}

// large is a Python model that gives more than it takes, and small one that takes it.
const (
	large = `
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", np.full(300_000, r.inputs()[0].as_numpy()[0]))]) for r in requests]
`
	small = `
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", r.inputs()[0].as_numpy()[-1:])]) for r in requests]
`
	ofAny = `
backend: "python"
input [{ name: "x" data_type: TYPE_INT32 dims: [-1] }]
output [{ name: "y" data_type: TYPE_INT32 dims: [-1] }]
`
)

// What a step gives stays at its worker until the next step has read it, and no longer.
func TestWhatStepsGiveStaysAtTheirWorkers(t *testing.T) {
	if !clustered() {
		t.Skip("needs workers apart: run make e2e-cluster")
	}
	ensemble := strings.ReplaceAll(ensembleOf("a", "c", step("large", "x=a", "y=b"), step("small", "x=b", "y=c")), "max_batch_size: 1\n", "")
	s := start(t, repository(t, map[string]string{
		"large/config.pbtxt": ofAny, "large/1/model.py": large, "small/config.pbtxt": ofAny, "small/1/model.py": small,
		"both/config.pbtxt": strings.ReplaceAll(ensemble, "dims: [1]", "dims: [-1]"), "both/1/.keep": "",
	}))
	const n = 4
	for range n {
		status, said := s.do(http.MethodPost, s.HTTP+"/v2/models/both/infer", `{"inputs":[{"name":"a","datatype":"INT32","shape":[1],"data":[7]}]}`)
		if status != http.StatusOK || !strings.Contains(said, `"data":[7]`) {
			t.Fatalf("%d %.1000s", status, said)
		}
	}
	all := s.metrics()
	if kept := sum(t, all, "nereid_worker_kept_responses_total"); kept != n {
		t.Errorf("workers have kept %v of %d responses", kept, n)
	}
	if fetched := sum(t, all, "nereid_worker_fetched_bytes_total"); fetched != 0 {
		t.Errorf("the worker has fetched %v bytes of what it has", fetched)
	}
	for give := time.Now().Add(patience); sum(t, s.metrics(), "nereid_worker_kept_bytes") != 0; {
		if time.Now().After(give) {
			t.Fatal("workers keep what nobody reads any more")
		}
	}
}

// sum is that of the series of a family.
func sum(t *testing.T, metrics, family string) (total float64) {
	t.Helper()
	for line := range strings.Lines(metrics) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name, _, _ = strings.Cut(name, "{"); name != family {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatal(err)
		}
		total += v
	}
	return total
}

// Loading an ensemble loads what it needs, and unloading it with its dependents unloads
// what was loaded for it alone.
func TestEnsemblesAreLoadedWithTheirSteps(t *testing.T) {
	s := start(t, repository(t, map[string]string{
		"own/config.pbtxt": echo(0), "own/1/.keep": "", "shared/config.pbtxt": echo(0), "shared/1/.keep": "", "asked/config.pbtxt": echo(0), "asked/1/.keep": "",
		"one/config.pbtxt": ensembleOf("x", "d", step("own", "x=x", "y=b"), step("shared", "x=b", "y=c"), step("asked", "x=c", "y=d")), "one/1/.keep": "",
		"two/config.pbtxt": ensembleOf("x", "b", step("shared", "x=x", "y=b")), "two/1/.keep": "",
		"wrong/config.pbtxt":   strings.Replace(ensembleOf("x", "b", step("own", "x=x", "y=b")), "INT32", "FP32", 1),
		"wrong/1/.keep":        "",
		"missing/config.pbtxt": ensembleOf("x", "b", step("nowhere", "x=x", "y=b")), "missing/1/.keep": "",
	}), "--model-control-mode=explicit", "--load-model=two")
	s.infer(t, "two", http.StatusOK)
	s.control(t, "load", "asked", "", http.StatusOK, "")
	s.control(t, "load", "one", "", http.StatusOK, "")
	s.infer(t, "one", http.StatusOK)
	s.control(t, "load", "wrong", "", http.StatusInternalServerError, "in ensemble wrong, ensemble tensor x: inconsistent data type: TYPE_FP32 is inferred from model wrong while TYPE_INT32 is inferred from model own")
	s.control(t, "load", "missing", "", http.StatusBadRequest, "load failed for model 'missing': ensemble missing contains models that are not available or ambiguous: nowhere")
	s.control(t, "unload", "one", `{"parameters":{"unload_dependents":true}}`, http.StatusOK, "")
	s.infer(t, "asked", http.StatusOK)
	s.infer(t, "two", http.StatusOK)
	s.infer(t, "own", http.StatusNotFound)
	s.control(t, "unload", "shared", "", http.StatusOK, "")
	s.infer(t, "two", http.StatusNotFound)
	s.control(t, "load", "shared", "", http.StatusOK, "")
	s.infer(t, "two", http.StatusOK)
}

// A step that runs for each response of a decoupled one gives one response of the
// ensemble for each.
func TestEnsemblesOfDecoupledSteps(t *testing.T) {
	steps := "ensemble_scheduling { " + step("repeat", "IN=IN DELAY=DELAY WAIT=WAIT", "OUT=each IDX=IDX") + step("echo", "x=each", "y=OUT") + " }"
	s := start(t, repository(t, map[string]string{
		"echo/config.pbtxt": echo(0), "echo/1/.keep": "", "repeat/config.pbtxt": repeating, "repeat/1/.keep": "",
		"fan/config.pbtxt": fanOut + steps, "fan/1/.keep": "",
	}))
	connection, err := grpc.NewClient(s.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	stream, err := inference.NewGRPCInferenceServiceClient(connection).ModelStreamInfer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const n = 500 // more than wait for a reader
	values, zeros := make([]byte, 0, 4*n), make([]byte, 4*n)
	for i := range uint32(n) {
		values = binary.LittleEndian.AppendUint32(values, 1000+i)
	}
	tensor := func(name, datatype string, size int64) *inference.ModelInferRequest_InferInputTensor {
		return &inference.ModelInferRequest_InferInputTensor{Name: name, Datatype: datatype, Shape: []int64{size}}
	}
	if err := stream.Send(&inference.ModelInferRequest{
		ModelName: "fan", Inputs: []*inference.ModelInferRequest_InferInputTensor{tensor("IN", "INT32", n), tensor("DELAY", "UINT32", n), tensor("WAIT", "UINT32", 1)},
		RawInputContents: [][]byte{values, zeros, zeros[:4]},
	}); err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	seen := make(map[uint32]bool)
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || r.GetErrorMessage() != "" {
			t.Fatal(err, r.GetErrorMessage())
		}
		raw := r.GetInferResponse().GetRawOutputContents()
		if len(raw) != 2 {
			t.Fatalf("a response has %d outputs", len(raw))
		}
		value, index := binary.LittleEndian.Uint32(raw[0]), binary.LittleEndian.Uint32(raw[1])
		if value != 1000+index || seen[index] {
			t.Fatalf("value %d came with index %d, which came before: %v", value, index, seen[index])
		}
		seen[index] = true
	}
	if len(seen) != n {
		t.Errorf("%d responses came, want %d", len(seen), n)
	}
}

// summing is a model that gives the sum of what a sequence has had.
const summing = `
backend: "sequence"
max_batch_size: 1
input [{ name: "INPUT" data_type: TYPE_INT32 dims: [-1] }]
output [{ name: "OUTPUT" data_type: TYPE_INT32 dims: [-1] }]
sequence_batching {
  direct {}
  control_input [
    { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } },
    { name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [0, 1] } }
  ]
}
`

// Models call ensembles as they call others, and the steps of a sequence's requests are
// steps of that sequence.
func TestEnsemblesAreCalledAndHaveSequences(t *testing.T) {
	pair := strings.Replace(ensembleOf("x", "y", step("last", "x=x z=z", "y=y")), "max_batch_size: 1\n", "input [{ name: \"z\" data_type: TYPE_INT32 dims: [1] }]\n", 1)
	s := start(t, repository(t, map[string]string{
		"last/config.pbtxt": calling("z x", ""), "last/1/.keep": "", "pair/config.pbtxt": pair, "pair/1/.keep": "",
		"asks/config.pbtxt": calling("x z", calls("pair")), "asks/1/.keep": "",
		"sums/config.pbtxt": summing, "sums/1/.keep": "", "echo/config.pbtxt": echo(0), "echo/1/.keep": "",
		"summed/config.pbtxt": ensembleOf("x", "sum", step("echo", "x=x", "y=each"), step("sums", "INPUT=each", "OUTPUT=sum")), "summed/1/.keep": "",
	}))
	if status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/asks/infer", both); status != http.StatusOK || !strings.Contains(text, `"data":[2]`) {
		t.Errorf("the call of an ensemble: %d %s", status, text)
	}
	for i, want := range []string{`"data":[7]`, `"data":[14]`, `"data":[21]`} {
		body := strings.Replace(one, "{", fmt.Sprintf(`{"parameters":{"sequence_id":5,"sequence_start":%t,"sequence_end":%t},`, i == 0, i == 2), 1)
		if status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/summed/infer", body); status != http.StatusOK || !strings.Contains(text, want) {
			t.Errorf("step %d of the sequence: %d %s, want %s", i, status, text, want)
		}
	}
}
