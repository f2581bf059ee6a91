//go:build cgo

package onnxruntime_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
)

// told is a model that passes on what the server tells it about a batch, as
// many times as the batch has rows, so that each request can see it: OUTPUT0
// is INPUT1 for each element of ROWS.
func told(d tensor.Datatype, rank int) onnxmodel.Model {
	dims := []any{"n", "rank"}[:rank]
	m := onnxmodel.Identity(tensor.Int32, "elements")
	g := &m.Graph
	value := func(name string, d tensor.Datatype, dims ...any) onnxmodel.Value {
		return onnxmodel.Value{Name: name, Type: d, Dims: onnxmodel.Dims(dims...)}
	}
	g.Inputs = append(g.Inputs, value("ROWS", tensor.Int32, "batch", 1), value("INPUT1", d, dims...))
	g.Outputs = append(g.Outputs, value("TOLD", tensor.Int64, "batch", "length"), value("SHAPE", tensor.Int64, "batch", "rank"))
	g.Initializers = []onnxmodel.Tensor{
		{Name: "row", Type: tensor.Int64, Shape: tensor.Shape{2}, Raw: []byte(pack([]int64{1, -1}))},
		{Name: "zero", Type: tensor.Int64, Shape: tensor.Shape{1}, Raw: []byte(pack([]int64{0}))},
	}
	cast := []onnxmodel.Attr{{Name: "to", Value: onnxmodel.ElementType(tensor.Int64)}}
	g.Nodes = append(g.Nodes,
		onnxmodel.Node{Op: "Cast", Inputs: []string{"ROWS"}, Outputs: []string{"rows"}, Attrs: cast},
		onnxmodel.Node{Op: "Mul", Inputs: []string{"rows", "zero"}, Outputs: []string{"zeros"}},
		onnxmodel.Node{Op: "Cast", Inputs: []string{"INPUT1"}, Outputs: []string{"numbers"}, Attrs: cast},
		onnxmodel.Node{Op: "Reshape", Inputs: []string{"numbers", "row"}, Outputs: []string{"line"}},
		onnxmodel.Node{Op: "Add", Inputs: []string{"zeros", "line"}, Outputs: []string{"TOLD"}},
		onnxmodel.Node{Op: "Shape", Inputs: []string{"INPUT1"}, Outputs: []string{"shape"}},
		onnxmodel.Node{Op: "Add", Inputs: []string{"zeros", "shape"}, Outputs: []string{"SHAPE"}},
	)
	return m
}

func toldConfig(kind modelconfig.BatchInputKind, d tensor.Datatype) *modelconfig.Config {
	ragged := io("INPUT0", tensor.Int32, -1)
	ragged.Ragged = true
	rank := int64(1)
	if kind == modelconfig.BatchItemShape {
		rank = 2
	}
	c := config(8, ios(ragged, io("ROWS", tensor.Int32, 1)),
		ios(io("OUTPUT0", tensor.Int32, -1), io("TOLD", tensor.Int64, -1), io("SHAPE", tensor.Int64, rank)))
	c.BatchInputs = []modelconfig.BatchInput{{Kind: kind, Targets: []string{"INPUT1"}, Source: "INPUT0", Datatype: d}}
	c.BatchOutputs = []modelconfig.BatchOutput{{Targets: []string{"OUTPUT0"}, Source: "INPUT0"}}
	return c
}

func TestInputsMadeFromTheBatch(t *testing.T) {
	tests := []struct {
		name  string
		kind  modelconfig.BatchInputKind
		told  []int64
		shape []int64
	}{
		{"counts", modelconfig.BatchElementCount, []int64{3, 2, 0}, []int64{3}},
		{"running sum", modelconfig.BatchAccumulatedElementCount, []int64{3, 5, 5}, []int64{3}},
		{"running sum after 0", modelconfig.BatchAccumulatedElementCountWithZero, []int64{0, 3, 5, 5}, []int64{4}},
		{"largest as shape", modelconfig.BatchMaxElementCountAsShape, []int64{0, 0, 0}, []int64{3}},
		{"shape of each row", modelconfig.BatchItemShape, []int64{3, 1, 1, 0}, []int64{4, 1}},
		{"the same, flat", modelconfig.BatchItemShapeFlatten, []int64{3, 1, 1, 0}, []int64{4}},
	}
	b, _ := open(t)
	inputs := []struct {
		rows int64
		data []int32
	}{{1, []int32{7, 8, 9}}, {2, []int32{5, 6}}, {1, nil}}
	for _, tt := range tests {
		for _, d := range []tensor.Datatype{tensor.Int32, tensor.FP32} {
			t.Run(tt.name+"/"+d.String(), func(t *testing.T) {
				rank := len(tt.shape)
				in := instance(t, b, told(d, rank), toldConfig(tt.kind, d))
				got := newBatch(t)
				for _, one := range inputs {
					got.requests = append(got.requests, request(one.rows,
						value{"INPUT0", tensor.Int32, tensor.Shape{one.rows, int64(len(one.data)) / one.rows}, pack(one.data)},
						value{"ROWS", tensor.Int32, tensor.Shape{one.rows, 1}, pack(make([]int32, one.rows))}))
				}
				got = run(t, in, got.requests...)
				if got.executed != 1 {
					t.Errorf("the model ran %d times, want once", got.executed)
				}
				for i, one := range inputs {
					want := []value{
						{"OUTPUT0", tensor.Int32, tensor.Shape{one.rows, int64(len(one.data)) / one.rows}, pack(one.data)},
						{"TOLD", tensor.Int64, tensor.Shape{one.rows, int64(len(tt.told))}, repeat(one.rows, tt.told)},
						{"SHAPE", tensor.Int64, tensor.Shape{one.rows, int64(rank)}, repeat(one.rows, tt.shape)},
					}
					if d := cmp.Diff(want, outputs(t, got.response(i))); d != "" {
						t.Errorf("request %d: %s", i, d)
					}
				}
			})
		}
	}
}

func repeat(rows int64, numbers []int64) (all string) {
	for range rows {
		all += pack(numbers)
	}
	return all
}

func TestBatchTensorsThatTheModelDoesNotFit(t *testing.T) {
	b, _ := open(t)
	const kind = modelconfig.BatchElementCount
	unknown, datatype, rank, output := toldConfig(kind, tensor.Int32), toldConfig(kind, tensor.FP32), toldConfig(modelconfig.BatchItemShape, tensor.Int32), toldConfig(kind, tensor.Int32)
	unknown.BatchInputs[0].Targets = []string{"INPUT2"}
	output.BatchOutputs[0].Targets = []string{"TOLD"}
	for want, c := range map[string]*modelconfig.Config{
		"unexpected inference input 'INPUT2', allowed inputs are: INPUT0, INPUT1, ROWS":                                    unknown,
		"unable to load model 'm', configuration expects datatype TYPE_FP32 for input 'INPUT1', model provides TYPE_INT32": datatype,
		"unable to load model 'm', batch input 'INPUT1' has 2 dimensions of which the first varies, model provides [-1]":   rank,
		"unable to load model 'm', batch output 'TOLD' needs a model output of shape [-1], model provides [-1,-1]":         output,
	} {
		c.Outputs[0], c.Outputs[1] = c.Outputs[1], c.Outputs[0]
		if d := cmp.Diff(want, reject(t, b, version(t, told(tensor.Int32, 1), c))); d != "" {
			t.Error(d)
		}
	}
}

func TestBatchOutputOfAnotherLengthFails(t *testing.T) {
	b, _ := open(t)
	m := onnxmodel.Twice(tensor.Int32, "n")
	ragged := io("INPUT0", tensor.Int32, -1)
	ragged.Ragged = true
	c := config(8, ios(ragged), ios(io("OUTPUT0", tensor.Int32, -1)))
	c.BatchOutputs = []modelconfig.BatchOutput{{Targets: []string{"OUTPUT0"}, Source: "INPUT0"}}
	in := instance(t, b, m, c)
	got := run(t, in, request(1, value{"INPUT0", tensor.Int32, tensor.Shape{1, 3}, pack([]int32{1, 2, 3})}))
	const want = "output 'OUTPUT0' of model 'm': failed to split the output tensor in responses: expected [3], as many elements as its batch_output's source input has, got [6]"
	if d := cmp.Diff(want, failed(t, got.response(0)).Msg); d != "" {
		t.Error(d)
	}
}
