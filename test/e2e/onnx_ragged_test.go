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
	text := s.metrics()
	runs := regexp.MustCompile(`nv_inference_exec_count\{model="ragged",version="1"\} (\d+)`).FindStringSubmatch(text)
	if runs == nil {
		t.Fatalf("no count of runs in %s", text)
	}
	if n, _ := strconv.Atoi(runs[1]); n >= requests {
		t.Errorf("%d requests took %d runs", requests, n)
	}
}
