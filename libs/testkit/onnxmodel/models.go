package onnxmodel

import (
	"encoding/binary"
	"math"

	"github.com/nereid-serving/nereid/libs/tensor"
)

// The names of the inputs and outputs of the models below.
const (
	Input0  = "INPUT0"
	Input1  = "INPUT1"
	Output0 = "OUTPUT0"
	Output1 = "OUTPUT1"
)

// AddSub gives OUTPUT0 = INPUT0 + INPUT1 and OUTPUT1 = INPUT0 - INPUT1, all of
// one shape.
func AddSub(d tensor.Datatype, dims ...any) Model {
	value := func(name string) Value { return Value{Name: name, Type: d, Dims: Dims(dims...)} }
	return Model{Graph: Graph{
		Name:    "add_sub",
		Inputs:  []Value{value(Input0), value(Input1)},
		Outputs: []Value{value(Output0), value(Output1)},
		Nodes: []Node{
			{Op: "Add", Inputs: []string{Input0, Input1}, Outputs: []string{Output0}},
			{Op: "Sub", Inputs: []string{Input0, Input1}, Outputs: []string{Output1}},
		},
	}}
}

// Accumulator adds INPUT0 to the state STATE_IN, and gives the sum as OUTPUT0 and
// as the state STATE_OUT, all of one shape.
func Accumulator(d tensor.Datatype, dims ...any) Model {
	value := func(name string) Value { return Value{Name: name, Type: d, Dims: Dims(dims...)} }
	return Model{Graph: Graph{
		Name:    "accumulator",
		Inputs:  []Value{value(Input0), value("STATE_IN")},
		Outputs: []Value{value(Output0), value("STATE_OUT")},
		Nodes: []Node{
			{Op: "Add", Inputs: []string{Input0, "STATE_IN"}, Outputs: []string{Output0}},
			{Op: "Identity", Inputs: []string{Output0}, Outputs: []string{"STATE_OUT"}},
		},
	}}
}

// Unary gives OUTPUT0 = op(INPUT0), of the same datatype and shape.
func Unary(op string, d tensor.Datatype, dims ...any) Model {
	return Model{Graph: Graph{
		Name:    op,
		Inputs:  []Value{{Name: Input0, Type: d, Dims: Dims(dims...)}},
		Outputs: []Value{{Name: Output0, Type: d, Dims: Dims(dims...)}},
		Nodes:   []Node{{Op: op, Inputs: []string{Input0}, Outputs: []string{Output0}}},
	}}
}

// Identity gives OUTPUT0 = INPUT0.
func Identity(d tensor.Datatype, dims ...any) Model { return Unary("Identity", d, dims...) }

// Relu gives OUTPUT0 = max(INPUT0, 0).
func Relu(d tensor.Datatype, dims ...any) Model { return Unary("Relu", d, dims...) }

// Cast gives OUTPUT0 = INPUT0 in another datatype.
func Cast(from, to tensor.Datatype, dims ...any) Model {
	m := Unary("Cast", from, dims...)
	m.Graph.Outputs[0].Type = to
	m.Graph.Nodes[0].Attrs = []Attr{{Name: "to", Value: ElementType(to)}}
	return m
}

// NonZero gives the indexes of INPUT0's elements that are not 0: INT64 of
// shape [rank, n], where n depends on the data.
func NonZero(d tensor.Datatype, dims ...any) Model {
	m := Unary("NonZero", d, dims...)
	m.Graph.Outputs[0] = Value{Name: Output0, Type: tensor.Int64, Dims: Dims(len(dims), "n")}
	return m
}

// Sum gives the sum of all elements of INPUT0, a scalar.
func Sum(d tensor.Datatype, dims ...any) Model {
	m := Unary("ReduceSum", d, dims...)
	m.Graph.Outputs[0].Dims = nil
	m.Graph.Nodes[0].Attrs = []Attr{{Name: "keepdims", Value: int64(0)}}
	return m
}

// PassThrough has no nodes: its one output X is its input X.
func PassThrough(d tensor.Datatype, dims ...any) Model {
	x := Value{Name: "X", Type: d, Dims: Dims(dims...)}
	return Model{Graph: Graph{Name: "pass_through", Inputs: []Value{x}, Outputs: []Value{x}}}
}

// Default gives OUTPUT0 = INPUT0 + INPUT1, all FP32, where INPUT1 may be left
// out and is then filled with value.
func Default(value float32, n int) Model {
	m := AddSub(tensor.FP32, n)
	m.Graph.Outputs, m.Graph.Nodes = m.Graph.Outputs[:1], m.Graph.Nodes[:1]
	var raw []byte
	for range n {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(value))
	}
	m.Graph.Initializers = []Tensor{{Name: Input1, Type: tensor.FP32, Shape: tensor.Shape{int64(n)}, Raw: raw}}
	return m
}

// Count counts to INPUT0, an INT64 scalar, in as many steps: OUTPUT0 = INPUT0.
// Large numbers make it run as long as a test wants.
func Count() Model {
	scalar := func(name string, d tensor.Datatype) Value { return Value{Name: name, Type: d} }
	constant := func(name string, d tensor.Datatype, raw ...byte) Tensor {
		return Tensor{Name: name, Type: d, Shape: tensor.Shape{}, Raw: raw}
	}
	body := Graph{
		Name:    "step",
		Inputs:  []Value{scalar("i", tensor.Int64), scalar("go_in", tensor.Bool), scalar("n_in", tensor.Int64)},
		Outputs: []Value{scalar("go_out", tensor.Bool), scalar("n_out", tensor.Int64)},
		Nodes: []Node{
			{Op: "Identity", Inputs: []string{"go_in"}, Outputs: []string{"go_out"}},
			{Op: "Add", Inputs: []string{"n_in", "one"}, Outputs: []string{"n_out"}},
		},
	}
	return Model{Graph: Graph{
		Name:    "count",
		Inputs:  []Value{scalar(Input0, tensor.Int64)},
		Outputs: []Value{scalar(Output0, tensor.Int64)},
		Nodes: []Node{{
			Op: "Loop", Inputs: []string{Input0, "true", "zero"}, Outputs: []string{Output0},
			Attrs: []Attr{{Name: "body", Value: body}},
		}},
		Initializers: []Tensor{
			constant("true", tensor.Bool, 1),
			constant("zero", tensor.Int64, 0, 0, 0, 0, 0, 0, 0, 0),
			constant("one", tensor.Int64, 1, 0, 0, 0, 0, 0, 0, 0),
		},
	}}
}
