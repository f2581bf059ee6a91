package e2e

import (
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"testing"
)

// TestRealClientsOfTritonsTestBackends has the real clients use models of identity,
// square, sequence and dyna_sequence, which Triton's own tests are made of.
func TestRealClientsOfTritonsTestBackends(t *testing.T) {
	pair := func(datatype, dims, more string) string {
		return fmt.Sprintf(`
input { name: "INPUT0" data_type: %[1]s dims: %[2]s %[3]s }
output { name: "OUTPUT0" data_type: %[1]s dims: %[2]s }
`, datatype, dims, more)
	}
	flag := func(name, kind string) string {
		return fmt.Sprintf(`{ name: "%s" control { kind: %s int32_false_true: [ 0, 1 ] } }`, name, kind)
	}
	const numbers = `input { name: "INPUT" data_type: TYPE_INT32 dims: [ -1 ] } output { name: "OUTPUT" data_type: TYPE_INT32 dims: [ -1 ] }`
	start1, ready := flag("START", "CONTROL_SEQUENCE_START"), flag("READY", "CONTROL_SEQUENCE_READY")
	dynamic := func(id string) string {
		return `backend: "dyna_sequence" max_batch_size: 4 instance_group { count: 2 kind: KIND_CPU } ` + numbers + `
sequence_batching {
  oldest { max_candidate_sequences: 4 }
  max_sequence_idle_microseconds: 600000000
  control_input [ ` + start1 + `, ` + ready + `, ` + flag("END", "CONTROL_SEQUENCE_END") + `,
    { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: ` + id + ` } } ]
}`
	}
	files := map[string]string{
		"square/config.pbtxt": `backend: "square" model_transaction_policy { decoupled: true }
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }`,
		"failing/config.pbtxt": `backend: "square" max_batch_size: 1 model_transaction_policy { decoupled: true }
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
parameters [ { key: "CUSTOM_FAIL_COUNT" value { string_value: "1" } }, { key: "CUSTOM_EMPTY_COUNT" value { string_value: "1" } } ]`,
		"sequence/config.pbtxt": `backend: "sequence" max_batch_size: 2 instance_group { count: 1 kind: KIND_CPU } ` + numbers + `
sequence_batching { direct { } max_sequence_idle_microseconds: 600000000 control_input [ ` + start1 + `, ` + ready + ` ] }`,
		"dyna_sequence/config.pbtxt": dynamic("TYPE_UINT64"),
		"string_ids/config.pbtxt":    dynamic("TYPE_STRING"),
		"optional/config.pbtxt": `backend: "identity" max_batch_size: 4` + pair("TYPE_INT32", "[ 1 ]", "") +
			`input { name: "INPUT1" data_type: TYPE_FP64 dims: [ -1, 2 ] optional: true } output { name: "OUTPUT1" data_type: TYPE_FP64 dims: [ -1, 2 ] }`,
		"wrong/config.pbtxt": `backend: "identity" input { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] } output { name: "OUTPUT1" data_type: TYPE_INT32 dims: [ 1 ] }`,
	}
	for _, datatype := range []string{"BOOL", "UINT8", "INT64", "FP16", "FP32", "STRING"} {
		files["identity_"+datatype+"/config.pbtxt"] = `backend: "identity" max_batch_size: 8
dynamic_batching { }
parameters { key: "execute_delay_ms" value { string_value: "1" } }` + pair("TYPE_"+datatype, "[ -1 ]", "")
	}
	kept := make(map[string]string)
	for name := range files {
		kept[path.Dir(name)+"/1/.keep"] = ""
	}
	maps.Copy(files, kept)
	s := start(t, repository(t, files), "--exit-on-error=false")
	python(t, []string{"HTTP_URL=" + s.HTTP, "GRPC_URL=" + s.GRPC}, "test/e2e/clients/test_testbackends.py", "-v")
}

// A model of a backend of Triton's that there is not says what to do instead, also if
// it runs on GPUs alone; one whose framework is not installed names that.
func TestModelsOfForeignBackendsSayTheWayOut(t *testing.T) {
	s := start(t, repository(t, map[string]string{
		"llm/config.pbtxt": `backend: "vllm"`, "llm/1/model.json": `{"model": "small"}`,
		"plan/config.pbtxt": `platform: "tensorrt_plan"`, "plan/1/model.plan": "x",
		"vino/1/model.xml":   "<net/>",
		"trees/config.pbtxt": `backend: "fil"`, "trees/1/xgboost.json": "{}",
		"images/config.pbtxt": `backend: "dali"`, "images/1/model.dali": "x",
		"torch/config.pbtxt": `platform: "pytorch_libtorch" input { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 1 ] } output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 1 ] }`,
		"torch/1/model.pt":   "x",
	}), "--exit-on-error=false")
	want := map[string]string{
		"images": "prepare the data in a Python model, or in operators of the ONNX model",
		"llm":    "run vLLM in a Python model",
		"plan":   "there is no model.plan.json beside it",
		"torch":  "the backend pytorch needs the package torch",
		"trees":  "convert the trees with onnxmltools or skl2onnx",
		"vino":   "the backend openvino needs the package openvino",
	}
	s.untilIndex(func(list []entry) bool { // where a worker is apart, it is asked when it is there
		return len(list) == len(want) && !slices.ContainsFunc(list, func(e entry) bool {
			return e.State != "UNAVAILABLE" || !strings.Contains(e.Reason, want[e.Name])
		})
	})
	s.wants(t, http.MethodGet, "/v2/health/live", http.StatusOK, "")
}
