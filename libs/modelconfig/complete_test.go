package modelconfig_test

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/onnxheader"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// value makes an FP32 tensor of the given dimensions.
func value(name string, dims ...int64) onnxheader.Value {
	v := onnxheader.Value{Name: name, Kind: onnxheader.KindTensor, Element: 1, HasShape: true}
	for _, d := range dims {
		v.Dims = append(v.Dims, onnxheader.Dim{Size: d})
	}
	return v
}

func header(inputs []onnxheader.Value, outputs ...onnxheader.Value) *onnxheader.Header {
	return &onnxheader.Header{Inputs: inputs, Outputs: outputs}
}

func completed(text string, h *onnxheader.Header) (*inference.ModelConfig, error) {
	return completedTo(modelconfig.DefaultMaxBatchSize, text, h)
}

func completedTo(batch int32, text string, h *onnxheader.Header) (*inference.ModelConfig, error) {
	return modelconfig.Load([]byte(text), modelconfig.Directory{
		Name: "m", Files: []string{"model.onnx"}, File: "config.pbtxt",
		Complete: &modelconfig.Completion{
			Versions: []int64{3, 12}, MaxBatchSize: batch,
			Header: func(_ backends.Descriptor, version int64, filename string) (*onnxheader.Header, error) {
				if version != 12 || filename != "model.onnx" {
					return nil, errors.New("asked for another file")
				}
				return h, nil
			},
		},
	})
}

func TestCompletionFillsInWhatIsMissing(t *testing.T) {
	weight := value("w", 7)
	weight.HasDefault = true
	batched := header([]onnxheader.Value{value("x", -1, 3, -1), weight}, value("y", -1), value("z", -1, 5))
	fixed := header([]onnxheader.Value{value("x", 4)}, value("y"))
	const tensors = `input { name: "x" data_type: TYPE_FP32 dims: [ 3, -1 ] }
		output { name: "y" data_type: TYPE_FP32 dims: 1 reshape { } }
		output { name: "z" data_type: TYPE_FP32 dims: 5 }`
	tests := []struct {
		name, text string
		header     *onnxheader.Header
		want       string // inputs, outputs, batch size and scheduler
	}{
		{"nothing is given", "", batched, "max_batch_size: 4 dynamic_batching { preferred_batch_size: 4 }" + tensors},
		{"batch size is given", "max_batch_size: 9", batched, "max_batch_size: 9 dynamic_batching { preferred_batch_size: 9 }" + tensors},
		{"a batch of one needs no batcher", "max_batch_size: 1", batched, "max_batch_size: 1" + "\n" + tensors},
		{
			"the given batcher stays", "dynamic_batching { max_queue_delay_microseconds: 5 }", batched,
			"max_batch_size: 4 dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 5 }" + tensors,
		},
		{
			"given inputs stay", `input { name: "mine" data_type: TYPE_INT8 dims: 1 }`, batched,
			`max_batch_size: 4 dynamic_batching { preferred_batch_size: 4 } input { name: "mine" data_type: TYPE_INT8 dims: 1 }` + tensors[strings.Index(tensors, "output"):],
		},
		{
			"given outputs stay", `output { name: "mine" data_type: TYPE_INT8 dims: 1 }`, batched,
			`max_batch_size: 4 dynamic_batching { preferred_batch_size: 4 } output { name: "mine" data_type: TYPE_INT8 dims: 1 }` + tensors[:strings.Index(tensors, "output")],
		},
		{
			"all tensors are given", `input { name: "a" data_type: TYPE_INT8 dims: 1 } output { name: "b" data_type: TYPE_INT8 dims: 1 }`, batched,
			`input { name: "a" data_type: TYPE_INT8 dims: 1 } output { name: "b" data_type: TYPE_INT8 dims: 1 }`,
		},
		{
			"no batch, a scalar", "", fixed,
			`input { name: "x" data_type: TYPE_FP32 dims: 4 } output { name: "y" data_type: TYPE_FP32 dims: 1 }`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := completed(tt.text, tt.header)
			if err != nil {
				t.Fatal(err)
			}
			part := &inference.ModelConfig{
				Input: got.GetInput(), Output: got.GetOutput(), MaxBatchSize: got.GetMaxBatchSize(), SchedulingChoice: got.GetSchedulingChoice(),
			}
			want := new(inference.ModelConfig)
			if err := prototext.Unmarshal([]byte(tt.want), want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, part, protocmp.Transform()); diff != "" {
				t.Errorf("configuration (-want +got):\n%s", diff)
			}
			if got.GetBackend() != "onnxruntime" {
				t.Errorf("backend = %q", got.GetBackend())
			}
			if _, err := modelconfig.FromProto(got); err != nil {
				t.Errorf("FromProto: %v", err)
			}
		})
	}
}

func TestCompletionWithoutBatches(t *testing.T) {
	model := header([]onnxheader.Value{value("x", -1, 3)}, value("y", -1))
	for text, want := range map[string]string{"": "[-1 3]", "max_batch_size: 2": "[3]"} {
		got, err := completedTo(0, text, model)
		if err != nil {
			t.Fatal(err)
		}
		if dims := fmt.Sprint(got.GetInput()[0].GetDims()); dims != want {
			t.Errorf("with %q dims are %s, want %s", text, dims, want)
		}
	}
}

func TestCompletionReportsWhatItCannot(t *testing.T) {
	odd := header([]onnxheader.Value{{Name: "list", Kind: onnxheader.KindSequence}, {Name: "open", Kind: onnxheader.KindTensor, Element: 1}},
		onnxheader.Value{Name: "open", Kind: onnxheader.KindTensor, Element: 7},
		onnxheader.Value{Name: "small", Kind: onnxheader.KindTensor, Element: 17, HasShape: true})
	tests := []struct {
		name, text string
		header     *onnxheader.Header
		want       []string
	}{
		{"batch size of a model without batches", "# m\nmax_batch_size: 2", header([]onnxheader.Value{value("x", -1)}, value("y", 3)), []string{
			"config.pbtxt:2:1: autofill failed for model 'm': model does not support batching while non-zero max_batch_size is specified: set it to 0 or remove it; 'y' has shape [3] in the model",
		}},
		{"what the protocol does not have", "", odd, []string{
			"12/model.onnx: autofill failed for model 'm': Unsupported ONNX Type 'ONNX_TYPE_SEQUENCE' for I/O 'list', expected 'ONNX_TYPE_TENSOR'.",
			"12/model.onnx: autofill failed for model 'm': input 'open' has no shape in the model",
			"12/model.onnx: autofill failed for model 'm': output 'open' has no shape in the model",
			"12/model.onnx: autofill failed for model 'm': output 'small' has elements of ONNX's type 17",
		}},
		{"a dimension of 0", "", header([]onnxheader.Value{value("x", 0)}, value("y", 1)), []string{
			"config.pbtxt: model input 'x' dimension must be integer >= 1",
		}},
		{"another backend", `backend: "echo"`, nil, []string{
			"config.pbtxt: the configuration has no 'input' for m: list each", "config.pbtxt: the configuration has no 'output'",
		}},
		{"a file outside of the version", `default_model_filename: "../x.onnx"`, nil, []string{
			"config.pbtxt:1:1: default_model_filename '../x.onnx' leaves the version directory",
		}},
		{"a version that is not there", `version_policy { specific { versions: 5 } } max_batch_size: -1`, nil, []string{
			"config.pbtxt:1:45: 'max_batch_size' must be non-negative",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := completed(tt.text, tt.header)
			got := modelconfig.ProblemsOf(err)
			if !slices.EqualFunc(tt.want, got, func(want string, p modelconfig.Problem) bool { return strings.HasPrefix(p.String(), want) }) {
				t.Errorf("problems = %v, want %q", got, tt.want)
			}
		})
	}
}

// absent is the error of a file that is not there.
type absent struct{}

func (absent) Error() string        { return "the model file does not exist" }
func (absent) Is(target error) bool { return target == fs.ErrNotExist }

func TestUnreadableModelFilesAreTold(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{absent{}, "1/model.onnx: autofill failed for model 'm': the model file does not exist: put it there"},
		{onnxheader.ErrMalformed, "1/model.onnx: autofill failed for model 'm': not an ONNX model: export"},
	} {
		_, err := modelconfig.Load(nil, modelconfig.Directory{Name: "m", Files: []string{"model.onnx"}, Complete: &modelconfig.Completion{
			Versions: []int64{1}, Header: func(backends.Descriptor, int64, string) (*onnxheader.Header, error) { return nil, tt.err },
		}})
		got := modelconfig.ProblemsOf(err)
		if len(got) != 1 || !strings.HasPrefix(got[0].String(), tt.want) {
			t.Errorf("problems = %v, want %q", got, tt.want)
		}
	}
}

func TestStrictCompletionTakesNothing(t *testing.T) {
	_, err := modelconfig.Load([]byte(`backend: "onnxruntime"`), modelconfig.Directory{Name: "m", Complete: &modelconfig.Completion{
		Versions: []int64{1}, Strict: true,
		Header: func(backends.Descriptor, int64, string) (*onnxheader.Header, error) {
			t.Error("the header is read")
			return nil, errors.New("not read")
		},
	}})
	_, plain := modelconfig.Load([]byte(`backend: "onnxruntime"`), modelconfig.Directory{Name: "m"})
	if diff := cmp.Diff(modelconfig.ProblemsOf(plain), modelconfig.ProblemsOf(err)); diff != "" || plain == nil {
		t.Errorf("problems with strict completion (-without +with):\n%s", diff)
	}
}
