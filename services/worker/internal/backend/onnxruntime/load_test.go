//go:build cgo

package onnxruntime_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/onnxruntime"
)

// reject loads a version that does not load and returns its error, less the
// common beginning with the file's path.
func reject(t *testing.T, b *onnxruntime.Backend, v backend.Version) string {
	t.Helper()
	m, err := b.Load(context.Background(), v)
	if err == nil {
		_ = m.Close()
		t.Fatal("the model was loaded")
	}
	e := errs.From(err)
	if e.Reason != errs.LoadFailed || e.Model != v.Ref.Name {
		t.Errorf("reason %s and model %q, want %s and %q", e.Reason, e.Model, errs.LoadFailed, v.Ref.Name)
	}
	start := "load model '" + v.Ref.Name + "' version 1 from " + v.Dir
	if !strings.HasPrefix(e.Msg, start) {
		t.Fatalf("message %q does not begin with %q", e.Msg, start)
	}
	_, cause, _ := strings.Cut(e.Msg[len(start):], ": ")
	return cause
}

func TestConfigurationThatDisagreesWithTheModelIsRefused(t *testing.T) {
	b, _ := open(t)
	const f = tensor.FP32
	optional, ragged := io("INPUT1", f, 2), io("INPUT0", f, -1)
	optional.Optional, ragged.Ragged = true, true
	addSub := onnxmodel.AddSub(f, "b", 2)
	unary := onnxmodel.Relu(f, "n", 2)
	out := ios(io("OUTPUT0", f, -1, 2))
	sequence := onnxmodel.Identity(f, "n")
	sequence.Graph.Inputs[0].Sequence, sequence.Graph.Outputs[0].Sequence = true, true
	tests := []struct {
		name   string
		model  onnxmodel.Model
		config *modelconfig.Config
		want   string
	}{
		{
			"input left out", addSub, config(8, ios(io("INPUT0", f, 2)), ios(io("OUTPUT0", f, 2))),
			"unable to load model 'm', configuration expects 1 inputs, model provides 2",
		},
		{
			"input too many", unary, config(0, ios(io("INPUT0", f, -1, 2), io("INPUT1", f, 2)), out),
			"unable to load model 'm', configuration expects 2 inputs, model provides 1",
		},
		{
			"input of another name", addSub, config(8, ios(io("INPUT0", f, 2), io("INPUT", f, 2)), ios(io("OUTPUT0", f, 2))),
			"unexpected inference input 'INPUT', allowed inputs are: INPUT0, INPUT1",
		},
		{
			"output of another name", unary, config(0, ios(io("INPUT0", f, -1, 2)), ios(io("OUT", f, -1, 2))),
			"unexpected inference output 'OUT', allowed outputs are: OUTPUT0",
		},
		{
			"datatype of an input", unary, config(0, ios(io("INPUT0", tensor.Int64, -1, 2)), out),
			"unable to load model 'm', configuration expects datatype TYPE_INT64 for input 'INPUT0', model provides TYPE_FP32",
		},
		{
			"datatype of an output", unary, config(0, ios(io("INPUT0", f, -1, 2)), ios(io("OUTPUT0", tensor.Bytes, -1, 2))),
			"unable to load model 'm', configuration expects datatype TYPE_STRING for output 'OUTPUT0', model provides TYPE_FP32",
		},
		{
			"rank", unary, config(0, ios(io("INPUT0", f, 2)), out),
			"model 'm', tensor 'INPUT0': the model expects 2 dimensions (shape [-1,2]) but the model configuration specifies 1 dimensions (shape [2])",
		},
		{
			"dimension", unary, config(0, ios(io("INPUT0", f, 4, 3)), out),
			"model 'm', tensor 'INPUT0': the model expects 2 dimensions (shape [-1,2]) but the model configuration specifies 2 dimensions (shape [4,3])",
		},
		{
			"output narrower than the model's", unary, config(0, ios(io("INPUT0", f, 4, 2)), ios(io("OUTPUT0", f, 4, 2))),
			"model 'm', tensor 'OUTPUT0': the model expects 2 dimensions (shape [-1,2]) but the model configuration specifies 2 dimensions (shape [4,2])",
		},
		{
			"batch dimension given twice", addSub, config(8, ios(io("INPUT0", f, -1, 2), io("INPUT1", f, -1, 2)), ios(io("OUTPUT0", f, 2))),
			"model 'm', tensor 'INPUT0': the model expects 2 dimensions (shape [-1,2]) but the model configuration specifies 3 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making complete shape [-1,-1,2])",
		},
		{
			"model without a batch dimension", onnxmodel.Relu(f, 4, 2), config(8, ios(io("INPUT0", f, 2)), ios(io("OUTPUT0", f, 2))),
			"model 'm', tensor 'INPUT0': for the model to support batching the shape should have at least 1 dimension and the first dimension must be -1; but shape expected by the model is [4,2]",
		},
		{
			"scalar in a model that batches", onnxmodel.Sum(f, "n"), config(8, ios(modelconfig.IO{Name: "INPUT0", Datatype: f, Dims: tensor.Shape{1}, HasReshape: true}), ios(io("OUTPUT0", f, 1))),
			"model 'm', tensor 'OUTPUT0': for the model to support batching the shape should have at least 1 dimension and the first dimension must be -1; but shape expected by the model is []",
		},
		{
			"scalar with a dimension", onnxmodel.Sum(f, "n"), config(0, ios(io("INPUT0", f, -1)), ios(io("OUTPUT0", f, 2))),
			"unable to load model 'm', scalar tensor 'OUTPUT0', should only provide 1 in the model configuration when the model doesn't support batching. Model configuration provided: [2].",
		},
		{
			"optional input of a model that batches", addSub, config(8, ios(io("INPUT0", f, 2), io("INPUT1", f, 2), optional), ios(io("OUTPUT0", f, 2))),
			"unable to load model 'm', optional input 'INPUT1' is not supported for models that support batching",
		},
		{
			"ragged input with dimensions", onnxmodel.Relu(f, "b", "n"), config(8, ios(ragged), ios(io("OUTPUT0", f, -1))),
			"unable to load model 'm', configuration expects model provides input with shape [-1] for ragged input 'INPUT0', model provides [-1,-1]",
		},
		{
			"sequence of tensors", sequence, config(0, ios(io("INPUT0", f, -1)), ios(io("OUTPUT0", f, -1))),
			"Unsupported ONNX Type 'ONNX_TYPE_SEQUENCE' for I/O 'INPUT0', expected 'ONNX_TYPE_TENSOR'.",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, reject(t, b, version(t, tt.model, tt.config))); d != "" {
				t.Error(d)
			}
		})
	}
}

func reluConfig(parameters map[string]string) *modelconfig.Config {
	c := config(0, ios(io("INPUT0", tensor.FP32, 2)), ios(io("OUTPUT0", tensor.FP32, 2)))
	c.Parameters = parameters
	return c
}

// A model that does not say how many dimensions its tensors have would take any.
func TestRanksAreBounded(t *testing.T) {
	b, _ := open(t)
	undeclared := onnxmodel.Identity(tensor.FP32, "n")
	undeclared.Graph.Inputs[0].NoShape, undeclared.Graph.Outputs[0].NoShape = true, true
	ones := func(n int) tensor.Shape { return slices.Repeat(tensor.Shape{1}, n) }
	for name, tt := range map[string]struct {
		batch         int64
		input, output int
		reshaped      bool
		want          string
	}{
		"the most":                  {input: 32, output: 32},
		"one more of an input":      {input: 33, output: 32, want: "input 'INPUT0' has 33 dimensions, more than the 32 that are supported"},
		"one more of an output":     {input: 32, output: 33, want: "output 'OUTPUT0' has 33 dimensions"},
		"one more with the batch's": {batch: 4, input: 32, output: 31, want: "input 'INPUT0' has 33 dimensions"},
		"many that are reshaped":    {input: 40, output: 40, reshaped: true},
	} {
		t.Run(name, func(t *testing.T) {
			in, out := io("INPUT0", tensor.FP32, ones(tt.input)...), io("OUTPUT0", tensor.FP32, ones(tt.output)...)
			if tt.reshaped {
				in.HasReshape, in.Reshape, out.HasReshape, out.Reshape = true, tensor.Shape{1}, true, tensor.Shape{1}
			}
			v := version(t, undeclared, config(tt.batch, ios(in), ios(out)))
			if tt.want != "" {
				if got := reject(t, b, v); !strings.Contains(got, tt.want) {
					t.Errorf("%s, want %q", got, tt.want)
				}
				return
			}
			m, err := b.Load(t.Context(), v)
			if err != nil {
				t.Fatal(err)
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestFilesThatCannotBeLoaded(t *testing.T) {
	b, _ := open(t)
	whole := onnxmodel.Relu(tensor.FP32, 2).Bytes()
	tests := []struct {
		name  string
		write func(file string) error
		want  string // in the message
	}{
		{"missing", os.Remove, "unable to find '"},
		{"empty", func(f string) error { return os.WriteFile(f, nil, 0o644) }, "is empty"},
		{"cut off", func(f string) error { return os.WriteFile(f, whole[:len(whole)/2], 0o644) }, "Protobuf parsing failed"},
		{"not ONNX", func(f string) error { return os.WriteFile(f, []byte("<html>"), 0o644) }, "Protobuf parsing failed"},
		{"directory without a model", func(f string) error { _ = os.Remove(f); return os.Mkdir(f, 0o755) }, "unable to find '"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := version(t, onnxmodel.Relu(tensor.FP32, 2), reluConfig(nil))
			if err := tt.write(filepath.Join(v.Dir, "model.onnx")); err != nil {
				t.Fatal(err)
			}
			if got := reject(t, b, v); !strings.Contains(got, tt.want) {
				t.Errorf("message %q does not say %q", got, tt.want)
			}
		})
	}
}

func TestModelInADirectory(t *testing.T) {
	b, _ := open(t)
	v := version(t, onnxmodel.Relu(tensor.FP32, 2), reluConfig(nil))
	v.Config.Filename = "net.onnx"
	onnxmodel.Relu(tensor.FP32, 2).WriteFile(t, filepath.Join(v.Dir, "net.onnx", "model.onnx"))
	m, err := b.Load(context.Background(), v)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

func TestParameters(t *testing.T) {
	b, _ := open(t)
	tests := []struct {
		key, value string
		want       string // the error, or none
	}{
		{"intra_op_thread_count", "2", ""},
		{"intra_op_thread_count", "0", ""},
		{"intra_op_thread_count", "many", "parameter intra_op_thread_count: failed to convert 'many' to integral number"},
		{"inter_op_thread_count", "-1", ""},
		{"execution_mode", "1", ""},
		{"execution_mode", "2", "parameter execution_mode: Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got 2 ."},
		{"enable_mem_arena", "0", ""},
		{"enable_mem_pattern", "True", ""},
		{"enable_mem_pattern", "perhaps", "parameter enable_mem_pattern: failed to convert 'perhaps' to boolean"},
		{"session.intra_op.allow_spinning", "1", ""},
		{"anything_else", "x", ""},
	}
	for _, tt := range tests {
		t.Run(tt.key+"="+tt.value, func(t *testing.T) {
			v := version(t, onnxmodel.Relu(tensor.FP32, 2), reluConfig(map[string]string{tt.key: tt.value}))
			if tt.want != "" {
				if d := cmp.Diff(tt.want, reject(t, b, v)); d != "" {
					t.Error(d)
				}
				return
			}
			m, err := b.Load(context.Background(), v)
			if err != nil {
				t.Fatal(err)
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestEveryGraphLevelRuns(t *testing.T) {
	b, _ := open(t)
	for _, level := range []int32{-1, 0, 1, 2} {
		c := reluConfig(map[string]string{"memory.enable_memory_arena_shrinkage": "cpu:0"})
		c.GraphLevel = level
		in := instance(t, b, onnxmodel.Relu(tensor.FP32, 2), c)
		got := outputs(t, run(t, in, request(1, value{"INPUT0", tensor.FP32, tensor.Shape{2}, pack([]float32{-1, 1})})).response(0))
		if d := cmp.Diff(pack([]float32{0, 1}), got[0].Data); d != "" {
			t.Errorf("level %d: %s", level, d)
		}
	}
}

func TestLoadThatWasGivenUp(t *testing.T) {
	b, _ := open(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := b.Load(ctx, version(t, onnxmodel.Relu(tensor.FP32, 2), reluConfig(nil))); errs.Of(err) != errs.LoadFailed {
		t.Errorf("Load with a canceled context: %v", err)
	}
}
