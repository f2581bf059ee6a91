package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// vector is the configuration of Relu over two numbers, with more fields.
func vector(more string) string {
	return `backend: "onnxruntime"
input { name: "INPUT0" data_type: TYPE_FP32 dims: [2] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [2] }
` + more
}

const ask = `{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[2],"data":[-1,2]}]}`

// Each bad model is refused with a message of its own, and the good one beside
// it serves through all of it.
func TestBadModelsAreToldApartAndLeaveTheOthersAlone(t *testing.T) {
	relu := string(onnxmodel.Relu(tensor.FP32, 2).Bytes())
	cyclic := onnxmodel.Relu(tensor.FP32, 2)
	cyclic.Graph.Nodes[0].Inputs[0] = onnxmodel.Output0
	outside := onnxmodel.Relu(tensor.FP32, 2)
	outside.Graph.Initializers = []onnxmodel.Tensor{{
		Name: "w", Type: tensor.FP32, Shape: tensor.Shape{2}, External: map[string]string{"location": "../../good/1/model.onnx"},
	}}
	outside.Graph.Nodes = []onnxmodel.Node{{Op: "Add", Inputs: []string{onnxmodel.Input0, "w"}, Outputs: []string{onnxmodel.Output0}}}
	wants := map[string]struct{ config, model, want string }{
		"damaged":     {vector(""), relu[:len(relu)/2], "the file is cut off or damaged: copy it again"},
		"empty":       {vector(""), "", "is empty"},
		"cyclic":      {vector(""), string(cyclic.Bytes()), "not acyclic"},
		"outside":     {vector(""), string(outside.Bytes()), "escapes model directory"},
		"input_name":  {strings.Replace(vector(""), "INPUT0", "INPUT", 1), relu, "unexpected inference input 'INPUT', allowed inputs are: INPUT0"},
		"output_name": {strings.Replace(vector(""), "OUTPUT0", "OUT", 1), relu, "unexpected inference output 'OUT', allowed outputs are: OUTPUT0"},
		"shape":       {strings.Replace(vector(""), "[2]", "[3]", 1), relu, "the model expects 1 dimensions (shape [2])"},
		"datatype":    {strings.Replace(vector(""), "FP32", "INT8", 1), relu, "configuration expects datatype TYPE_INT8 for input 'INPUT0', model provides TYPE_FP32"},
		"parameter":   {vector(`parameters { key: "execution_mode" value { string_value: "2" } }`), relu, "execution_mode are 0 or 1 but got 2"},
		"accelerator": {vector(`optimization { execution_accelerators { cpu_execution_accelerator { name: "openvino" parameters { key: "precision" value: "FP8" } } } }`), relu, "use FP32, BF16 or FP16"},
		"operators":   {vector(`model_operations { op_library_filename: "ops.so" }`), relu, "use a model of standard operators"},
		"library":     {strings.Replace(vector(""), "onnxruntime", "mine", 1), relu, "loads no shared objects as backends"},
		"runtime":     {vector(`runtime: "libtriton_mine.so"`), relu, "shared objects are not loaded as backends"},
		"batcher":     {vector(`parameters { key: "TRITON_BATCH_STRATEGY_PATH" value { string_value: "b.so" } }`), relu, "set dynamic_batching"},
		"version":     {vector(`version_policy { specific { versions: [7] } }`), relu, "at least one version must be available"},
	}
	files := map[string]string{"good/config.pbtxt": vector(""), "good/1/model.onnx": relu}
	for name, m := range wants {
		files[name+"/config.pbtxt"], files[name+"/1/model.onnx"] = m.config, m.model
	}
	s := start(t, repository(t, files), "--exit-on-error=false")
	_, index := s.do(http.MethodPost, s.HTTP+"/v2/repository/index", "")
	for name, m := range wants {
		t.Run(name, func(t *testing.T) {
			status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/"+name+"/infer", ask)
			if status == http.StatusOK {
				t.Error("the model is served")
			}
			if !strings.Contains(index, m.want) {
				t.Errorf("nothing says %q; the request gets %d %s", m.want, status, text)
			}
			if status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/good/infer", ask); status != http.StatusOK {
				t.Errorf("the good model: %d %s", status, text)
			}
		})
	}
	if t.Failed() {
		t.Log(index)
	}
}

// counting is a model that runs for as long as its request says: minutes for
// the largest numbers.
func counting() map[string]string {
	return map[string]string{
		"count/config.pbtxt": `backend: "onnxruntime"
input { name: "INPUT0" data_type: TYPE_INT64 dims: [1] }
output { name: "OUTPUT0" data_type: TYPE_INT64 dims: [1] }
instance_group { count: 1 kind: KIND_CPU }
`,
		"count/1/model.onnx": string(onnxmodel.Count().Bytes()),
	}
}

func countTo(n int64) string {
	return fmt.Sprintf(`{"inputs":[{"name":"INPUT0","datatype":"INT64","shape":[1],"data":[%d]}]}`, n)
}

// The only instance is busy with a run of hours, until its client goes.
func TestExecutionEndsWhenItsClientGoes(t *testing.T) {
	s := start(t, repository(t, counting()))
	connection, err := grpc.NewClient(s.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	for way, call := range map[string]func(context.Context, int64) error{
		"http": func(ctx context.Context, n int64) error { return s.post(ctx, "count", countTo(n)) },
		"grpc": func(ctx context.Context, n int64) error {
			_, err := inference.NewGRPCInferenceServiceClient(connection).ModelInfer(ctx, countRequest(n))
			return err
		},
		"stream": func(ctx context.Context, n int64) error {
			stream, err := inference.NewGRPCInferenceServiceClient(connection).ModelStreamInfer(ctx)
			if err != nil {
				return err
			}
			if err := stream.Send(countRequest(n)); err != nil {
				return err
			}
			_, err = stream.Recv()
			return err
		},
	} {
		t.Run(way, func(t *testing.T) {
			for range 3 {
				ctx, leave := context.WithCancel(t.Context())
				gone := make(chan error, 1)
				go func() { gone <- call(ctx, 4_000_000_000_000) }()
				s.inFlight(1)
				leave()
				if err := <-gone; err == nil {
					t.Fatal("the run of hours was answered")
				}
				status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/count/infer", countTo(1000))
				if status != http.StatusOK || !strings.Contains(text, `"data":[1000]`) {
					t.Fatalf("the next request: %d %s", status, text)
				}
			}
		})
	}
}

// post sends a request to a model that its caller may leave.
func (s *server) post(ctx context.Context, model, body string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.HTTP+"/v2/models/"+model+"/infer", strings.NewReader(body))
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	return response.Body.Close()
}

func countRequest(n int64) *inference.ModelInferRequest {
	return &inference.ModelInferRequest{
		ModelName: "count",
		Inputs: []*inference.ModelInferRequest_InferInputTensor{{
			Name: "INPUT0", Datatype: "INT64", Shape: []int64{1},
			Contents: &inference.InferTensorContents{Int64Contents: []int64{n}},
		}},
	}
}

func TestSettingsOfBackendsAndHostPolicies(t *testing.T) {
	dir := repository(t, map[string]string{"relu/1/model.onnx": string(onnxmodel.Relu(tensor.FP32, "n", 2).Bytes())})
	s := start(t, dir, "--backend-config=onnxruntime,default-max-batch-size=16", "--backend-config=,default-max-batch-size=2",
		"--backend-config=onnxruntime,enable-global-threadpool=1", "--backend-config=onnxruntime,intra_op_thread_count=2",
		"--backend-config=mine,a=b", // of a backend that is not there: a line in the log
		"--host-policy=cpu,cpu-cores=0")
	if _, text := s.do(http.MethodGet, s.HTTP+"/v2/models/relu/config", ""); !strings.Contains(text, `"max_batch_size":16`) {
		t.Errorf("the model's configuration: %s", text)
	}
	for flag, want := range map[string]string{
		"--backend-config=onnxruntime":                            "want a name and a setting",
		"--backend-config=onnxruntime,threads=1":                  "it has enable-global-threadpool",
		"--backend-config=,backend-directory=/x":                  "one setting in common",
		"--backend-config=onnxruntime,default-max-batch-size=few": "a number of rows",
		"--host-policy=cpu,cpu-cores=zero":                        "no list of cores",
		"--host-policy=cpu,cpu-cores=0-1023":                      "not among those of this process",
		"--host-policy=cpu,numa-node=77":                          "no NUMA node 77",
		"--host-policy=cpu,memory=much":                           "it has numa-node and cpu-cores",
	} {
		t.Run(flag, func(t *testing.T) {
			out, err := exec.CommandContext(t.Context(), program(t, "nereid"), "serve", "--model-repository", dir, "--http-port=0", "--grpc-port=0", "--metrics-port=0", flag).CombinedOutput()
			if err == nil || !strings.Contains(string(out), want) {
				t.Errorf("error %v, want %q:\n%s", err, want, out)
			}
		})
	}
}

// A directory is a model with the weights beside it.
func TestModelInADirectoryWithItsWeightsBesideIt(t *testing.T) {
	m := onnxmodel.Relu(tensor.FP32, 2)
	m.Graph.Initializers = []onnxmodel.Tensor{{Name: "w", Type: tensor.FP32, Shape: tensor.Shape{2}, External: map[string]string{"location": "model.onnx_data"}}}
	m.Graph.Nodes = []onnxmodel.Node{{Op: "Add", Inputs: []string{onnxmodel.Input0, "w"}, Outputs: []string{onnxmodel.Output0}}}
	dir := repository(t, map[string]string{
		"beside/1/model.onnx": string(m.Bytes()), "beside/config.pbtxt": vector(""),
		"within/1/model.onnx/model.onnx": string(m.Bytes()), "within/config.pbtxt": vector(""),
	})
	weights := "\x00\x00\x80\x3f\x00\x00\x00\x40" // 1, 2
	for _, file := range []string{"beside/1/model.onnx_data", "within/1/model.onnx/model.onnx_data"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(weights), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := start(t, dir)
	for _, name := range []string{"beside", "within"} {
		status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/"+name+"/infer", ask)
		if status != http.StatusOK || !strings.Contains(text, `"data":[0,4]`) && !strings.Contains(text, `"data":[0.0,4.0]`) {
			t.Errorf("%s: %d %s", name, status, text)
		}
	}
}
