//go:build cgo

package onnxruntime_test

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

// vector is the configuration of a model with the FP32 inputs and outputs of
// onnxmodel.Relu of 64 elements.
func vector() *modelconfig.Config {
	return config(0, ios(io("INPUT0", tensor.FP32, 64)), ios(io("OUTPUT0", tensor.FP32, 64)))
}

// edited is that model with its graph changed.
func edited(edit func(g *onnxmodel.Graph)) onnxmodel.Model {
	m := onnxmodel.Relu(tensor.FP32, 64)
	edit(&m.Graph)
	return m
}

// added is that model with a constant added instead.
func added(w onnxmodel.Tensor) onnxmodel.Model {
	return edited(func(g *onnxmodel.Graph) {
		w.Name, w.Type = "w", tensor.FP32
		g.Initializers = []onnxmodel.Tensor{w}
		g.Nodes = []onnxmodel.Node{{Op: "Add", Inputs: []string{"INPUT0", "w"}, Outputs: []string{"OUTPUT0"}}}
	})
}

// huge is that model with weights of a shape whose bytes are not there.
func huge(shape ...int64) onnxmodel.Model {
	return edited(func(g *onnxmodel.Graph) {
		g.Initializers = []onnxmodel.Tensor{{Name: "w", Type: tensor.FP32, Shape: shape, Raw: make([]byte, 4)}}
		g.Nodes = []onnxmodel.Node{
			{Op: "ReduceSum", Inputs: []string{"w"}, Outputs: []string{"s"}, Attrs: []onnxmodel.Attr{{Name: "keepdims", Value: int64(0)}}},
			{Op: "Add", Inputs: []string{"INPUT0", "s"}, Outputs: []string{"OUTPUT0"}},
		}
	})
}

func TestModelsThatNoRuntimeCanRunAreRefused(t *testing.T) {
	opset := onnxmodel.Relu(tensor.FP32, 64)
	opset.Opset = 999
	custom := edited(func(g *onnxmodel.Graph) { g.Nodes[0].Op, g.Nodes[0].Domain = "Frobnicate", "com.example" })
	custom.Domains = []string{"com.example"}
	tests := []struct {
		name  string
		model onnxmodel.Model
		want  string // in the message
	}{
		{"unknown operator", edited(func(g *onnxmodel.Graph) { g.Nodes[0].Op = "Frobnicate" }), "does not know the operator"},
		{"custom operator", custom, "com.example:Frobnicate(-1) is not a registered function/op (libraries of custom operators are not loaded"},
		{"operator set of the future", opset, "export the model for an older operator set"},
		{"operator without a kernel", onnxmodel.Relu(tensor.BF16, 64), "but not on CPUs for these datatypes"},
		{"node that feeds itself", edited(func(g *onnxmodel.Graph) { g.Nodes[0].Inputs[0] = "OUTPUT0" }), "not acyclic"},
		{"cycle", edited(func(g *onnxmodel.Graph) {
			g.Nodes = []onnxmodel.Node{
				{Op: "Add", Inputs: []string{"INPUT0", "OUTPUT0"}, Outputs: []string{"a"}},
				{Op: "Relu", Inputs: []string{"a"}, Outputs: []string{"OUTPUT0"}},
			}
		}), "not acyclic"},
		{"input from nowhere", edited(func(g *onnxmodel.Graph) { g.Nodes[0].Inputs[0] = "nowhere" }), "'nowhere' is not a graph input"},
		{"output from two nodes", edited(func(g *onnxmodel.Graph) { g.Nodes = append(g.Nodes, g.Nodes[0]) }), "Duplicate definition"},
		{"weights larger than memory", huge(1 << 40), "declares a size of 4398046511104 bytes"},
		{"weights larger than numbers", huge(1<<40, 1<<40), "Integer overflow"},
		{"weights of a negative size", added(onnxmodel.Tensor{Shape: tensor.Shape{-64}, Raw: make([]byte, 4)}), "Out of bounds dimensions"},
		{"weights cut off", added(onnxmodel.Tensor{Shape: tensor.Shape{64}, Raw: make([]byte, 4)}), "w"},
		{"weights of another shape", added(onnxmodel.Tensor{Shape: tensor.Shape{63}, Raw: make([]byte, 252)}), "Incompatible dimensions"},
		{"more dimensions than are carried", onnxmodel.Relu(tensor.FP32, make33()...), "at most 32"},
	}
	b, _ := open(t)
	other := addSub(t, b, 8, 2)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := reject(t, b, version(t, tt.model, vector())); !strings.Contains(got, tt.want) {
				t.Errorf("message %q does not say %q", got, tt.want)
			}
			got := run(t, other, addSubRequest(1, 2, 1, 2))
			if d := cmp.Diff(addSubAnswer(1, 2, 1, 2), outputs(t, got.response(0))); d != "" {
				t.Errorf("another model: %s", d)
			}
		})
	}
}

func make33() []any {
	dims := make([]any, 33)
	for i := range dims {
		dims[i] = 1
	}
	return dims
}

func TestWeightsOutsideTheModelsFile(t *testing.T) {
	data := make([]float32, 64)
	for i := range data {
		data[i] = float32(i)
	}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(pack(data)), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name     string
		external map[string]string
		want     string // in the message, or nothing if it loads
	}{
		{"beside it", map[string]string{"location": "model.onnx_data"}, ""},
		{"a part", map[string]string{"location": "large", "offset": "256", "length": "256"}, ""},
		{"in a directory", map[string]string{"location": "weights/w"}, ""},
		{"missing", map[string]string{"location": "absent"}, "does not exist"},
		{"without a name", map[string]string{"location": ""}, "cannot be empty"},
		{"a directory", map[string]string{"location": "weights"}, "regular file"},
		{"past the end", map[string]string{"location": "large", "offset": "400"}, "out of bounds"},
		{"before the start", map[string]string{"location": "large", "offset": "-4"}, "out of bounds"},
		{"longer than they are", map[string]string{"location": "large", "length": "1024"}, "size mismatch"},
		{"above the version", map[string]string{"location": "../model.onnx_data"}, "escapes model directory"},
		{"above it by a detour", map[string]string{"location": "weights/../../x"}, "escapes model directory"},
		{"by a link out", map[string]string{"location": "link"}, "escapes model directory"},
		{"anywhere", map[string]string{"location": secret}, "Absolute path not allowed"},
		{"in the process's memory", map[string]string{"location": "*/_ORT_MEM_ADDR_/*", "offset": "4096", "length": "256"}, "w"},
	}
	b, _ := open(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := added(onnxmodel.Tensor{Shape: tensor.Shape{64}, External: tt.external})
			v := version(t, m, vector())
			write(t, v, "model.onnx_data", pack(data))
			write(t, v, "large", strings.Repeat("\xff", 256)+pack(data))
			write(t, v, "weights/w", pack(data))
			write(t, v, "../model.onnx_data", pack(data))
			write(t, v, "../x", pack(data))
			if err := os.Symlink(secret, filepath.Join(v.Dir, "link")); err != nil {
				t.Fatal(err)
			}
			if tt.want != "" {
				if got := reject(t, b, v); !strings.Contains(got, tt.want) {
					t.Errorf("message %q does not say %q", got, tt.want)
				}
				return
			}
			in := serve(t, b, v)
			got := outputs(t, run(t, in, request(1, value{"INPUT0", tensor.FP32, tensor.Shape{64}, pack(make([]float32, 64))})).response(0))
			if d := cmp.Diff(pack(data), got[0].Data); d != "" {
				t.Error("wrong answer: the weights are others")
			}
		})
	}
}

// write writes a file beside the version's model.
func write(t *testing.T, v backend.Version, name, text string) {
	t.Helper()
	file := filepath.Join(v.Dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestRunsThatAskForTooMuchFail(t *testing.T) {
	b, _ := open(t)
	m := onnxmodel.Unary("ConstantOfShape", tensor.Int64, 1)
	m.Graph.Outputs[0] = onnxmodel.Value{Name: "OUTPUT0", Type: tensor.FP32, Dims: onnxmodel.Dims("n")}
	in := instance(t, b, m, config(0, ios(io("INPUT0", tensor.Int64, 1)), ios(io("OUTPUT0", tensor.FP32, -1))))
	zeros := func(n int64) *infer.Response {
		return run(t, in, request(1, value{"INPUT0", tensor.Int64, tensor.Shape{1}, pack([]int64{n})})).response(0)
	}
	for _, n := range []int64{1 << 50, math.MaxInt64, -1} {
		if f := failed(t, zeros(n)); f.Reason != errs.ExecutionFailed || !strings.Contains(f.Msg, "ConstantOfShape") {
			t.Errorf("%d elements: %v", n, f)
		}
		if d := cmp.Diff([]value{{"OUTPUT0", tensor.FP32, tensor.Shape{3}, pack([]float32{0, 0, 0})}}, outputs(t, zeros(3))); d != "" {
			t.Errorf("the run after it: %s", d)
		}
	}
}

func TestDivisionsWithoutAQuotientEndNothing(t *testing.T) {
	b, _ := open(t)
	shape := tensor.Shape{5}
	for op, want := range map[string][]int64{
		"Div": {math.MinInt64, 3, math.MinInt64, -2, math.MinInt64 / 2},
		"Mod": {0, 1, 0, 0, 0},
	} {
		for _, d := range []tensor.Datatype{tensor.Int64, tensor.Int32} {
			m := onnxmodel.AddSub(d, 5)
			m.Graph.Outputs, m.Graph.Nodes = m.Graph.Outputs[:1], m.Graph.Nodes[:1]
			m.Graph.Nodes[0].Op = op
			in := instance(t, b, m, config(0, ios(io("INPUT0", d, 5), io("INPUT1", d, 5)), ios(io("OUTPUT0", d, 5))))
			divide := func(x, y []int64) *infer.Response {
				return run(t, in, request(1, value{"INPUT0", d, shape, integers(d, x)}, value{"INPUT1", d, shape, integers(d, y)})).response(0)
			}
			const least = math.MinInt64
			got := outputs(t, divide([]int64{least, 7, least, 4, least}, []int64{-1, 2, -1, -2, 2}))
			if diff := cmp.Diff([]value{{"OUTPUT0", d, shape, integers(d, want)}}, got); diff != "" {
				t.Errorf("%s of %s: %s", op, d, diff)
			}
			if f := failed(t, divide(make([]int64, 5), make([]int64, 5))); !strings.Contains(f.Msg, "by zero") {
				t.Errorf("%s of %s by 0: %v", op, d, f)
			}
		}
	}
}

// integers packs numbers, those beyond INT32 as if INT64 were as narrow.
func integers(d tensor.Datatype, list []int64) string {
	if d == tensor.Int64 {
		return pack(list)
	}
	narrow := make([]int32, len(list))
	for i, n := range list {
		narrow[i] = int32(n)
		if n < math.MinInt32 {
			narrow[i] = int32(n >> 32)
		}
	}
	return pack(narrow)
}
