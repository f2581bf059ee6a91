package modelconfig_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

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
