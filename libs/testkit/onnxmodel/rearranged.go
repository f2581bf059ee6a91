package onnxmodel

import (
	"encoding/binary"

	"github.com/nereid-serving/nereid/libs/tensor"
)

// The models below move elements about without computing with them, so that
// they exist for every datatype, and give an answer that is not their input.

// Twice gives OUTPUT0 = INPUT0 followed by INPUT0 along the last dimension,
// which is a number or a symbol.
func Twice(d tensor.Datatype, dims ...any) Model {
	m := Unary("Concat", d, dims...)
	last := &m.Graph.Outputs[0].Dims[len(dims)-1]
	if *last = (Dim{Size: 2 * last.Size, Symbol: last.Symbol}); last.Symbol != "" {
		last.Symbol = "twice_" + last.Symbol
	}
	m.Graph.Nodes[0].Inputs = []string{Input0, Input0}
	m.Graph.Nodes[0].Attrs = []Attr{{Name: "axis", Value: int64(-1)}}
	return m
}

// Take gives the first n elements of INPUT0 along its last dimension, where n
// is the largest number in INPUT1, an INT64 tensor of the dimensions count:
// the shape of OUTPUT0 depends on the data.
func Take(d tensor.Datatype, count []Dim, dims ...any) Model {
	m := Unary("Gather", d, dims...)
	g := &m.Graph
	g.Inputs = append(g.Inputs, Value{Name: Input1, Type: tensor.Int64, Dims: count})
	g.Outputs[0].Dims[len(dims)-1] = Dim{Symbol: "taken"}
	g.Initializers = []Tensor{Int64("zero", 0), Int64("one", 1)}
	g.Nodes = []Node{
		{Op: "ReduceMax", Inputs: []string{Input1}, Outputs: []string{"n"}, Attrs: []Attr{{Name: "keepdims", Value: int64(0)}}},
		{Op: "Range", Inputs: []string{"zero", "n", "one"}, Outputs: []string{"indexes"}},
		{Op: "Gather", Inputs: []string{Input0, "indexes"}, Outputs: []string{Output0}, Attrs: []Attr{{Name: "axis", Value: int64(len(dims) - 1)}}},
	}
	return m
}

// Pick gives OUTPUT0 = INPUT0[INPUT1], a scalar, where INPUT0 has one
// dimension and INPUT1 is an INT64 scalar.
func Pick(d tensor.Datatype, dim any) Model {
	m := Unary("Gather", d, dim)
	m.Graph.Inputs = append(m.Graph.Inputs, Value{Name: Input1, Type: tensor.Int64})
	m.Graph.Outputs[0].Dims = nil
	m.Graph.Nodes[0].Inputs = []string{Input0, Input1}
	return m
}

// Int64 is a scalar constant.
func Int64(name string, v int64) Tensor {
	return Tensor{Name: name, Type: tensor.Int64, Shape: tensor.Shape{}, Raw: binary.LittleEndian.AppendUint64(nil, uint64(v))}
}
