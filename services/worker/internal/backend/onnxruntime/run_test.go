package onnxruntime_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
)

func TestAddSub(t *testing.T) {
	b, _ := open(t)
	in := instance(t, b, onnxmodel.AddSub(tensor.FP32, "batch", 2), config(8,
		ios(io("INPUT0", tensor.FP32, 2), io("INPUT1", tensor.FP32, 2)),
		ios(io("OUTPUT0", tensor.FP32, 2), io("OUTPUT1", tensor.FP32, 2))))
	got := outputs(t, run(t, in, request(2,
		value{"INPUT0", tensor.FP32, tensor.Shape{2, 2}, pack([]float32{1, 2, 3, 4})},
		value{"INPUT1", tensor.FP32, tensor.Shape{2, 2}, pack([]float32{10, 20, 30, 40})},
	)).response(0))
	want := []value{
		{"OUTPUT0", tensor.FP32, tensor.Shape{2, 2}, pack([]float32{11, 22, 33, 44})},
		{"OUTPUT1", tensor.FP32, tensor.Shape{2, 2}, pack([]float32{-9, -18, -27, -36})},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
