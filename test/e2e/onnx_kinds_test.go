package e2e

import (
	"testing"

	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
)

// arithmetic are the datatypes in which ONNX Runtime computes on a CPU.
func arithmetic() []tensor.Datatype {
	return []tensor.Datatype{tensor.Int32, tensor.Int64, tensor.FP32, tensor.FP64}
}

// sums adds and subtracts, in two outputs.
func sums() (list []tested) {
	for _, d := range arithmetic() {
		two := []declared{{onnxmodel.Input0, d, []int{3}, ""}, {onnxmodel.Input1, d, []int{3}, ""}}
		list = append(list, tested{
			name: "sums_" + d.String(), model: onnxmodel.AddSub(d, "batch", 3), maxBatch: 4,
			inputs:  two,
			outputs: []declared{{onnxmodel.Output0, d, []int{3}, ""}, {onnxmodel.Output1, d, []int{3}, ""}},
			cases: each(4, []int{3}, func(shape []int) []sent {
				second := input0(d, shape)
				second.Name = onnxmodel.Input1
				return []sent{input0(d, shape), second}
			}),
		})
	}
	return list
}

// casts gives another datatype than it takes.
func casts() (list []tested) {
	for _, to := range []tensor.Datatype{tensor.FP16, tensor.BF16, tensor.FP64, tensor.Int8, tensor.Bool, tensor.Uint64} {
		list = append(list, tested{
			name: "cast_" + to.String(), model: onnxmodel.Cast(tensor.Uint8, to, "n"),
			inputs:  []declared{{onnxmodel.Input0, tensor.Uint8, []int{-1}, ""}},
			outputs: []declared{{onnxmodel.Output0, to, []int{-1}, ""}},
			cases:   [][]sent{{input0(tensor.Uint8, []int{256})}},
		})
	}
	return list
}

// optional leaves an input out and gives it.
func optional() tested {
	second := input0(tensor.FP32, []int{3})
	second.Name = onnxmodel.Input1
	return tested{
		name: "optional", model: onnxmodel.Default(2.5, 3),
		inputs: []declared{
			{onnxmodel.Input0, tensor.FP32, []int{3}, ""},
			{onnxmodel.Input1, tensor.FP32, []int{3}, "optional: true"},
		},
		outputs: []declared{{onnxmodel.Output0, tensor.FP32, []int{3}, ""}},
		cases:   [][]sent{{input0(tensor.FP32, []int{3})}, {input0(tensor.FP32, []int{3}), second}},
	}
}

// reshaped takes and gives other shapes than its model, with a batch dimension
// and without, fixed and variable.
func reshaped() []tested {
	flat, open := input0(tensor.Int32, []int{2, 6}), input0(tensor.Int32, []int{2, 3})
	flat.ModelShape, open.ModelShape = []int{2, 2, 3}, []int{2, 1, 3}
	return []tested{
		{
			name: "reshaped", model: onnxmodel.Relu(tensor.Int32, "batch", 2, 3), maxBatch: 4,
			inputs:  []declared{{onnxmodel.Input0, tensor.Int32, []int{6}, "reshape { shape: [2, 3] }"}},
			outputs: []declared{{onnxmodel.Output0, tensor.Int32, []int{3, 2}, "reshape { shape: [2, 3] }"}},
			cases:   [][]sent{{flat}},
			shapes:  []map[string][]int{{onnxmodel.Output0: {2, 3, 2}}},
		},
		{
			name: "reshaped_open", model: onnxmodel.Relu(tensor.Int32, "x", 1, "y"),
			inputs:  []declared{{onnxmodel.Input0, tensor.Int32, []int{-1, -1}, "reshape { shape: [-1, 1, -1] }"}},
			outputs: []declared{{onnxmodel.Output0, tensor.Int32, []int{1, -1, -1}, "reshape { shape: [-1, 1, -1] }"}},
			cases:   [][]sent{{open}},
			shapes:  []map[string][]int{{onnxmodel.Output0: {1, 2, 3}}},
		},
	}
}

func TestAnswersOfOtherModelsAreOnnxRuntimes(t *testing.T) {
	list := append(sums(), casts()...)
	list = append(list, reshaped()...)
	compare(t, append(list, optional()))
}
