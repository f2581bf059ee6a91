package worker_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/worker"
)

// warmups returns a sample for the harness's echo model.
func warmups() []*inference.ModelWarmup {
	return []*inference.ModelWarmup{{
		Name: "full", BatchSize: 8, Count: 2,
		Inputs: map[string]*inference.ModelWarmup_Input{"x": {
			DataType: inference.DataType_TYPE_INT8, Dims: []int64{4},
			InputDataType: &inference.ModelWarmup_Input_RandomData{RandomData: true},
		}},
	}}
}

// reshaping is a model that gives INPUT0 the shape in INPUT1, and is warmed up
// with 4 elements and the shape in a file.
func reshaping() (onnxmodel.Model, *inference.ModelConfig) {
	m := onnxmodel.Relu(tensor.FP32, "n")
	m.Graph.Inputs = append(m.Graph.Inputs, onnxmodel.Value{Name: onnxmodel.Input1, Type: tensor.Int64, Dims: onnxmodel.Dims(1)})
	m.Graph.Nodes[0] = onnxmodel.Node{Op: "Reshape", Inputs: []string{onnxmodel.Input0, onnxmodel.Input1}, Outputs: []string{onnxmodel.Output0}}
	return m, &inference.ModelConfig{
		Name: "r", Backend: "onnxruntime",
		Input: []*inference.ModelInput{
			{Name: onnxmodel.Input0, DataType: inference.DataType_TYPE_FP32, Dims: []int64{-1}},
			{Name: onnxmodel.Input1, DataType: inference.DataType_TYPE_INT64, Dims: []int64{1}},
		},
		Output: []*inference.ModelOutput{{Name: onnxmodel.Output0, DataType: inference.DataType_TYPE_FP32, Dims: []int64{-1}}},
		ModelWarmup: []*inference.ModelWarmup{{
			Name: "once", BatchSize: 1,
			Inputs: map[string]*inference.ModelWarmup_Input{
				onnxmodel.Input0: {
					DataType: inference.DataType_TYPE_FP32, Dims: []int64{4},
					InputDataType: &inference.ModelWarmup_Input_RandomData{RandomData: true},
				},
				onnxmodel.Input1: {
					DataType: inference.DataType_TYPE_INT64, Dims: []int64{1},
					InputDataType: &inference.ModelWarmup_Input_InputDataFile{InputDataFile: "shape"},
				},
			},
		}},
	}
}

// A model of ONNX Runtime is warmed up with a file's values; a value that it
// cannot run fails the load, and what served before goes on.
func TestOnnxModelIsWarmBeforeItIsReady(t *testing.T) {
	library := onnxmodel.Library(t)
	dir := t.TempDir()
	reshape, config := reshaping()
	reshape.WriteFile(t, filepath.Join(dir, "1", "model.onnx"))
	if err := os.Mkdir(filepath.Join(dir, "warmup"), 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(dir, "warmup", "shape"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h := newHarness(t, func(c *worker.Config) { c.OnnxRuntimeLibrary = library })
	load := func(generation uint64) []string {
		h.model("r", generation, func(v *nereidv1.ModelValue) {
			v.Config = config
			v.Url, v.Versions[0].Url = "file://"+dir, "file://"+dir+"/1"
		})
		return lines(h.applied(h.assign(assigned("r", generation, 1))))
	}
	write("\x04\x00\x00\x00\x00\x00\x00\x00")
	if diff := cmp.Diff([]string{"r g1 READY  r_0_0:cpu"}, load(1)); diff != "" {
		t.Fatal(diff)
	}
	write("\x05\x00\x00\x00\x00\x00\x00\x00") // 4 elements do not make 5
	got := load(2)
	if len(got) != 2 || got[0] != "r g1 READY  r_0_0:cpu" || !strings.HasPrefix(got[1], "r g2 UNAVAILABLE failed to run warmup sample 'once': onnx runtime error") {
		t.Errorf("%q, want the first generation and why the second failed", got)
	}
	if n := len(h.scheduler.granted()); n != 1 {
		t.Errorf("%d instances were offered to the scheduler, want the one that is warm", n)
	}
}
