package modelconfig_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/onnxheader"
	"github.com/nereid-serving/nereid/libs/tensor"
)

func TestCompareFindsWhatWillNotLoad(t *testing.T) {
	optional := value("bias", 2)
	optional.HasDefault = true
	model := header([]onnxheader.Value{value("x", -1, 2), value("mask", -1), value("count", -1), optional},
		value("y", -1, 2), onnxheader.Value{Name: "list", Kind: onnxheader.KindSequence})
	io := func(name string, d tensor.Datatype, dims ...int64) modelconfig.IO {
		return modelconfig.IO{Name: name, Datatype: d, Dims: dims}
	}
	agreed := &modelconfig.Config{
		Name: "m", Inputs: []modelconfig.IO{io("x", tensor.FP32, 4, 2), io("mask", tensor.FP32, -1), io("bias", tensor.FP32, 2)},
		BatchInputs: []modelconfig.BatchInput{{Targets: []string{"count"}, Source: "x"}},
		Outputs:     []modelconfig.IO{io("y", tensor.FP32, -1, -1)},
	}
	if got := modelconfig.Compare(agreed, model, "1/model.onnx"); len(got) > 0 {
		t.Errorf("problems of a configuration that agrees: %v", got)
	}
	wrong := &modelconfig.Config{
		Name: "m", Inputs: []modelconfig.IO{io("x", tensor.Int8, -1, 2), io("masks", tensor.FP32)},
		Outputs: []modelconfig.IO{io("z", tensor.FP32), io("list", tensor.FP32)},
	}
	var got []string
	for _, p := range modelconfig.Compare(wrong, model, "1/model.onnx") {
		got = append(got, p.String())
	}
	want := []string{
		"1/model.onnx: unable to load model 'm', configuration expects datatype TYPE_INT8 for input 'x', model provides TYPE_FP32: write  data_type: TYPE_FP32",
		"1/model.onnx: unexpected inference input 'masks', allowed inputs are: x, mask, count, bias: did you mean mask?",
		"1/model.onnx: unable to load model 'm', the model's input 'mask' is not in the configuration: list it, or leave input empty to have all of them completed",
		"1/model.onnx: unable to load model 'm', the model's input 'count' is not in the configuration: list it, or leave input empty to have all of them completed",
		"1/model.onnx: unexpected inference output 'z', allowed outputs are: y, list: did you mean y?",
		"1/model.onnx: unable to load model 'm', configuration expects datatype TYPE_FP32 for output 'list', model provides ONNX_TYPE_SEQUENCE of ONNX's type 0: serve a model that has tensors of the protocol's datatypes",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

// TestMeaningIsCheckedBesideFindings loads texts that break the format: what they
// were meant to say is compared with the model file, as a load would.
func TestMeaningIsCheckedBesideFindings(t *testing.T) {
	const wrongName = "1/model.onnx: unexpected inference input 'y', allowed inputs are: x"
	const missing = "1/model.onnx: unable to load model 'm', the model's input 'x' is not in the configuration"
	model := header([]onnxheader.Value{value("x", -1, 2)}, value("out", -1, 3))
	output := `output { name: "out" data_type: TYPE_FP32 dims: 3 } `
	for _, tt := range []struct {
		name, text string
		header     *onnxheader.Header
		want       []string
	}{
		{"unknown field", `max_batch_size: 4 colour: 1 input { name: "y" data_type: TYPE_FP32 dims: 2 } ` + output, model, []string{"1:19: unknown field \"colour\"", wrongName, missing}},
		{"unknown field of the input", `max_batch_size: 4 input { name: "y" data_type: TYPE_FP32 dims: 2 colour: 1 } ` + output, model, []string{"1:66: unknown field \"colour\" in input[0]", wrongName, missing}},
		{"misspelled field and value", `max_batchsize: 4 input { name: "y" data_type: FP32 dims: 2 } ` + output, model, []string{"1:1: unknown field \"max_batchsize\"", "1:47: unknown value \"FP32\"", wrongName, missing}},
		{"finding alone", `max_batch_size: 4 colour: 1 input { name: "x" data_type: TYPE_FP32 dims: 2 } ` + output, model, []string{"1:19: unknown field \"colour\""}},
		{"what was left out is not missed", `max_batch_size: 4 input { name: "x" data_type: TYPE_FP32 dims: { } } ` + output, model, []string{"1:64: Expected integer"}},
		{"a broken rule comes first", `max_batch_size: -4 colour: 1 input { name: "y" data_type: TYPE_FP32 dims: 2 } ` + output, model, []string{"1:20: unknown field \"colour\"", "1:1: 'max_batch_size' must be non-negative"}},
		{"a model file that cannot be read", `max_batch_size: 4 colour: 1 input { name: "y" data_type: TYPE_FP32 dims: 2 } ` + output, nil, []string{"1:19: unknown field \"colour\"", "1/model.onnx: the model file of 'm' cannot be read: no header"}},
		{"a backend without headers", `backend: "echo" colour: 1 input { name: "y" data_type: TYPE_FP32 dims: 2 } ` + output, model, []string{"1:17: unknown field \"colour\""}},
	} {
		for _, strict := range []bool{false, true} {
			_, err := modelconfig.Load([]byte(tt.text), modelconfig.Directory{
				Name: "m", Files: []string{"model.onnx"}, File: "config.pbtxt",
				Complete: &modelconfig.Completion{Versions: []int64{1}, Strict: strict, MaxBatchSize: 4, Header: func(backends.Descriptor, int64, string) (*onnxheader.Header, error) {
					if tt.header == nil {
						return nil, errors.New("no header")
					}
					return tt.header, nil
				}},
			})
			got := modelconfig.ProblemsOf(err)
			same := func(want string, p modelconfig.Problem) bool {
				return strings.HasPrefix(strings.TrimPrefix(p.String(), "config.pbtxt:"), want)
			}
			if !slices.EqualFunc(tt.want, got, same) {
				t.Errorf("%s, strict %t: problems:\n%s\nwant:\n%s", tt.name, strict, strings.ReplaceAll(got.Error(), "; ", "\n"), strings.Join(tt.want, "\n"))
			}
		}
	}
}
