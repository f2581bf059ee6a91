package e2e

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
)

// Requests of different lengths share runs: the model gets their elements end
// to end, and where each ends, and every request gets its own part back.
func TestRaggedRequestsShareRuns(t *testing.T) {
	m := onnxmodel.Relu(tensor.Int32, "elements")
	m.Graph.Inputs = append(m.Graph.Inputs, onnxmodel.Value{Name: "ENDS", Type: tensor.Int32, Dims: onnxmodel.Dims("requests")})
	// Adding the ends times zero makes the model need them.
	m.Graph.Initializers = []onnxmodel.Tensor{{Name: "zero", Type: tensor.Int32, Shape: tensor.Shape{}, Raw: make([]byte, 4)}}
	m.Graph.Nodes = []onnxmodel.Node{
		{Op: "ReduceMax", Inputs: []string{"ENDS"}, Outputs: []string{"end"}, Attrs: []onnxmodel.Attr{{Name: "keepdims", Value: int64(0)}}},
		{Op: "Mul", Inputs: []string{"end", "zero"}, Outputs: []string{"nothing"}},
		{Op: "Add", Inputs: []string{onnxmodel.Input0, "nothing"}, Outputs: []string{"same"}},
		{Op: "Relu", Inputs: []string{"same"}, Outputs: []string{onnxmodel.Output0}},
	}
	s := start(t, repository(t, map[string]string{
		"ragged/1/model.onnx": string(m.Bytes()),
		"ragged/config.pbtxt": `backend: "onnxruntime"
max_batch_size: 16
input { name: "INPUT0" data_type: TYPE_INT32 dims: [-1] allow_ragged_batch: true }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [-1] }
batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "ENDS" data_type: TYPE_INT32 source_input: "INPUT0" }
batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "OUTPUT0" source_input: "INPUT0" }
dynamic_batching { preferred_batch_size: 16 max_queue_delay_microseconds: 200000 }
instance_group { count: 1 kind: KIND_CPU }
`,
	}))
	const requests = 32
	var all sync.WaitGroup
	for n := range requests {
		all.Go(func() {
			data := make([]string, n+1)
			for i := range data {
				data[i] = strconv.Itoa(100*n + i)
			}
			list := strings.Join(data, ",")
			status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/ragged/infer", fmt.Sprintf(
				`{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,%d],"data":[%s]}]}`, n+1, list))
			if status != http.StatusOK || !strings.Contains(text, fmt.Sprintf(`"shape":[1,%d]`, n+1)) || !strings.Contains(text, `"data":[`+list+`]`) {
				t.Errorf("request of %d elements: %d %s", n+1, status, text)
			}
		})
	}
	all.Wait()
	if n := runsOf(t, s, "ragged"); n >= requests {
		t.Errorf("%d requests took %d runs", requests, n)
	}
}

// runsOf is how often the server has run a model's version 1.
func runsOf(t *testing.T, s *server, model string) int {
	t.Helper()
	text := s.metrics()
	runs := regexp.MustCompile(`nv_inference_exec_count\{model="` + model + `",version="1"\} (\d+)`).FindStringSubmatch(text)
	if runs == nil {
		t.Fatalf("no count of runs in %s", text)
	}
	n, _ := strconv.Atoi(runs[1])
	return n
}

// Requests of different lengths share runs where the model allows padding: each
// gets what it gets alone, as long as its input is.
func TestPaddedRequestsShareRuns(t *testing.T) {
	value := func(name string, dims ...any) onnxmodel.Value {
		return onnxmodel.Value{Name: name, Type: tensor.Int32, Dims: onnxmodel.Dims(dims...)}
	}
	m := onnxmodel.Model{Graph: onnxmodel.Graph{
		Name:         "padded",
		Inputs:       []onnxmodel.Value{value("TOKENS", "batch", "length"), value("MASK", "batch", "length")},
		Outputs:      []onnxmodel.Value{value("SCORES", "batch", "length"), value("TOTAL", "batch", 1)},
		Initializers: []onnxmodel.Tensor{{Name: "axes", Type: tensor.Int64, Shape: tensor.Shape{1}, Raw: []byte{1, 0, 0, 0, 0, 0, 0, 0}}},
		Nodes: []onnxmodel.Node{
			{Op: "Mul", Inputs: []string{"TOKENS", "MASK"}, Outputs: []string{"masked"}},
			{Op: "ReduceSum", Inputs: []string{"masked", "axes"}, Outputs: []string{"TOTAL"}},
			{Op: "Add", Inputs: []string{"masked", "TOTAL"}, Outputs: []string{"SCORES"}},
		},
	}}
	s := start(t, repository(t, map[string]string{
		"padded/1/model.onnx": string(m.Bytes()),
		"padded/config.pbtxt": `backend: "onnxruntime"
max_batch_size: 16
input [ { name: "TOKENS" data_type: TYPE_INT32 dims: [-1] }, { name: "MASK" data_type: TYPE_INT32 dims: [-1] } ]
output [ { name: "SCORES" data_type: TYPE_INT32 dims: [-1] }, { name: "TOTAL" data_type: TYPE_INT32 dims: [1] } ]
dynamic_batching { preferred_batch_size: 16 max_queue_delay_microseconds: 200000 }
instance_group { count: 1 kind: KIND_CPU }
parameters { key: "padding.inputs" value { string_value: "TOKENS[0], MASK[0]" } }
parameters { key: "padding.values" value { string_value: "TOKENS=1000000" } }
parameters { key: "padding.buckets" value { string_value: "16, 32" } }
parameters { key: "padding.outputs" value { string_value: "SCORES[0]=TOKENS[0]" } }
`,
	}))
	const requests = 32
	var all sync.WaitGroup
	for n := 1; n <= requests; n++ {
		all.Go(func() {
			tokens, scores := make([]string, n), make([]string, n)
			total := n * (n - 1) / 2
			for i := range n {
				tokens[i], scores[i] = strconv.Itoa(i), strconv.Itoa(i+total)
			}
			mask := strings.Repeat("1,", n-1) + "1"
			status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/padded/infer", fmt.Sprintf(
				`{"inputs":[{"name":"TOKENS","datatype":"INT32","shape":[1,%d],"data":[%s]},{"name":"MASK","datatype":"INT32","shape":[1,%d],"data":[%s]}]}`,
				n, strings.Join(tokens, ","), n, mask))
			want := fmt.Sprintf(`"shape":[1,%d],"data":[%s]`, n, strings.Join(scores, ","))
			if status != http.StatusOK || !strings.Contains(text, want) || !strings.Contains(text, fmt.Sprintf(`"data":[%d]`, total)) {
				t.Errorf("request of %d tokens: %d %s", n, status, text)
			}
		})
	}
	all.Wait()
	if n := runsOf(t, s, "padded"); n >= requests {
		t.Errorf("%d requests took %d runs", requests, n)
	}
}
