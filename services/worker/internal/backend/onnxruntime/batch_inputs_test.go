//go:build cgo

package onnxruntime_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/onnxruntime"
)

// toldModel is a model that passes on what the server tells it about a batch, as
// many times as the batch has rows, so that each request can see it: OUTPUT0
// is INPUT1 for each element of ROWS.
func toldModel(d tensor.Datatype, rank int) onnxmodel.Model {
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
	inputs := []toldRequest{{1, []int32{7, 8, 9}}, {2, []int32{5, 6}}, {1, nil}}
	for _, tt := range tests {
		for _, d := range []tensor.Datatype{tensor.Int32, tensor.FP32} {
			t.Run(tt.name+"/"+d.String(), func(t *testing.T) {
				tell(t, b, tt.kind, d, inputs, tt.told, tt.shape)
			})
		}
	}
}

// A request alone, and requests without any elements, are told about as others.
func TestInputsMadeFromOneRequestOrNoElements(t *testing.T) {
	alone, empty := []toldRequest{{2, []int32{7, 8}}}, []toldRequest{{1, nil}, {2, nil}}
	tests := []struct {
		name     string
		kind     modelconfig.BatchInputKind
		requests []toldRequest
		told     []int64
		shape    []int64
	}{
		{"count of one", modelconfig.BatchElementCount, alone, []int64{2}, []int64{1}},
		{"sum of one", modelconfig.BatchAccumulatedElementCount, alone, []int64{2}, []int64{1}},
		{"sum of one after 0", modelconfig.BatchAccumulatedElementCountWithZero, alone, []int64{0, 2}, []int64{2}},
		{"largest of one", modelconfig.BatchMaxElementCountAsShape, alone, []int64{0, 0}, []int64{2}},
		{"rows of one", modelconfig.BatchItemShape, alone, []int64{1, 1}, []int64{2, 1}},
		{"rows of one, flat", modelconfig.BatchItemShapeFlatten, alone, []int64{1, 1}, []int64{2}},
		{"counts of nothing", modelconfig.BatchElementCount, empty, []int64{0, 0}, []int64{2}},
		{"sums of nothing", modelconfig.BatchAccumulatedElementCountWithZero, empty, []int64{0, 0, 0}, []int64{3}},
		{"rows of nothing", modelconfig.BatchItemShape, empty, []int64{0, 0, 0}, []int64{3, 1}},
	}
	b, _ := open(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tell(t, b, tt.kind, tensor.Int32, tt.requests, tt.told, tt.shape)
		})
	}
}

// toldRequest is a request to a told model.
type toldRequest struct {
	rows int64
	data []int32
}

// tell runs the requests as one batch and compares what each gets and is told.
func tell(t *testing.T, b *onnxruntime.Backend, kind modelconfig.BatchInputKind, d tensor.Datatype, inputs []toldRequest, told, shape []int64) {
	t.Helper()
	rank := len(shape)
	in := instance(t, b, toldModel(d, rank), toldConfig(kind, d))
	var requests []*infer.Request
	for _, one := range inputs {
		requests = append(requests, request(one.rows,
			value{"INPUT0", tensor.Int32, tensor.Shape{one.rows, int64(len(one.data)) / one.rows}, pack(one.data)},
			value{"ROWS", tensor.Int32, tensor.Shape{one.rows, 1}, pack(make([]int32, one.rows))}))
	}
	got := run(t, in, requests...)
	if got.executed != 1 {
		t.Errorf("the model ran %d times, want once", got.executed)
	}
	for i, one := range inputs {
		want := []value{
			{"OUTPUT0", tensor.Int32, tensor.Shape{one.rows, int64(len(one.data)) / one.rows}, pack(one.data)},
			{"TOLD", tensor.Int64, tensor.Shape{one.rows, int64(len(told))}, repeat(one.rows, told)},
			{"SHAPE", tensor.Int64, tensor.Shape{one.rows, int64(rank)}, repeat(one.rows, shape)},
		}
		if d := cmp.Diff(want, outputs(t, got.response(i))); d != "" {
			t.Errorf("request %d: %s", i, d)
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
	unknown, datatype, rank := toldConfig(kind, tensor.Int32), toldConfig(kind, tensor.FP32), toldConfig(modelconfig.BatchItemShape, tensor.Int32)
	unknown.BatchInputs[0].Targets = []string{"INPUT2"}
	for want, c := range map[string]*modelconfig.Config{
		"unexpected inference input 'INPUT2', allowed inputs are: INPUT0, INPUT1, ROWS":                                    unknown,
		"unable to load model 'm', configuration expects datatype TYPE_FP32 for input 'INPUT1', model provides TYPE_INT32": datatype,
		"unable to load model 'm', batch input 'INPUT1' has 2 dimensions of which the first varies, model provides [-1]":   rank,
	} {
		c.Outputs[0], c.Outputs[1] = c.Outputs[1], c.Outputs[0]
		if d := cmp.Diff(want, reject(t, b, version(t, toldModel(tensor.Int32, 1), c))); d != "" {
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
	const want = "output 'OUTPUT0' of model 'm': failed to split the output tensor in responses: expected 3 elements by the shapes of its batch_output's source input, got shape [6]"
	if d := cmp.Diff(want, failed(t, got.response(0)).Msg); d != "" {
		t.Error(d)
	}
}

// Several ragged inputs have batch inputs of their own, of which one goes to two
// inputs of the model. Shapes are those after a reshape, and an output whose
// dimensions are fixed is given out by them.
func TestBatchTensorsOfSeveralSourcesAndTargets(t *testing.T) {
	const d = tensor.Int32
	m := onnxmodel.Identity(d, "elements")
	pass := func(from, to string, dims ...any) {
		g := &m.Graph
		g.Inputs = append(g.Inputs, onnxmodel.Value{Name: from, Type: d, Dims: onnxmodel.Dims(dims...)})
		g.Outputs = append(g.Outputs, onnxmodel.Value{Name: to, Type: d, Dims: onnxmodel.Dims(dims...)})
		g.Nodes = append(g.Nodes, onnxmodel.Node{Op: "Identity", Inputs: []string{from}, Outputs: []string{to}})
	}
	pass("OTHER", "KEPT", "others")
	pass("ENDS", "END", "requests")
	pass("ALSO", "AGAIN", "requests")
	pass("SHAPES", "SHAPE", "rows", 3)
	first, other := io("INPUT0", d, -1), io("OTHER", d, -1, 4)
	first.Ragged, other.Ragged = true, true
	other.Reshape, other.HasReshape = tensor.Shape{-1, 2, 2}, true
	c := config(8, ios(first, other), ios(io("OUTPUT0", d, -1), io("KEPT", d, -1, 4), io("END", d, 1), io("AGAIN", d, 1), io("SHAPE", d, 3)))
	c.BatchInputs = []modelconfig.BatchInput{
		{Kind: modelconfig.BatchAccumulatedElementCount, Targets: []string{"ENDS", "ALSO"}, Source: "INPUT0", Datatype: d},
		{Kind: modelconfig.BatchItemShape, Targets: []string{"SHAPES"}, Source: "OTHER", Datatype: d},
	}
	c.BatchOutputs = []modelconfig.BatchOutput{
		{Targets: []string{"OUTPUT0", "END", "AGAIN"}, Source: "INPUT0"},
		{Targets: []string{"KEPT"}, Source: "OTHER"},
	}
	b, _ := open(t)
	in := instance(t, b, m, c)
	row := func(name string, data []int32, dims ...int64) value {
		return value{name, d, append(tensor.Shape{1}, dims...), pack(data)}
	}
	got := run(t, in,
		request(1, row("INPUT0", []int32{1, 2, 3}, 3), row("OTHER", []int32{1, 2, 3, 4, 5, 6, 7, 8}, 2, 4)),
		request(1, row("INPUT0", []int32{4}, 1), row("OTHER", []int32{9, 9, 9, 9}, 1, 4)))
	if got.executed != 1 {
		t.Errorf("the model ran %d times, want once", got.executed)
	}
	for i, want := range [][]value{
		{
			row("OUTPUT0", []int32{1, 2, 3}, 3), row("KEPT", []int32{1, 2, 3, 4, 5, 6, 7, 8}, 2, 4),
			row("END", []int32{3}, 1), row("AGAIN", []int32{3}, 1), row("SHAPE", []int32{2, 2, 2}, 3),
		},
		{
			row("OUTPUT0", []int32{4}, 1), row("KEPT", []int32{9, 9, 9, 9}, 1, 4),
			row("END", []int32{4}, 1), row("AGAIN", []int32{4}, 1), row("SHAPE", []int32{1, 2, 2}, 3),
		},
	} {
		if d := cmp.Diff(want, outputs(t, got.response(i))); d != "" {
			t.Errorf("request %d: %s", i, d)
		}
	}
}
