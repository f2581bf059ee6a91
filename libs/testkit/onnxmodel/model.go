package onnxmodel

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nereid-serving/nereid/libs/tensor"
)

// Dim is one dimension of a value: a size, or a symbol that stands for any.
type Dim struct {
	Size   int64
	Symbol string
}

// Dims makes dimensions of ints and strings, the strings being symbols. It
// panics on anything else.
func Dims(list ...any) []Dim {
	dims := make([]Dim, len(list))
	for i, d := range list {
		switch d := d.(type) {
		case int:
			dims[i].Size = int64(d)
		case string:
			dims[i].Symbol = d
		default:
			panic(fmt.Sprintf("onnxmodel: dimension of type %T", d))
		}
	}
	return dims
}

// Value is an input or output of a graph.
type Value struct {
	Name string
	Type tensor.Datatype
	// Dims are the dimensions; none is a scalar.
	Dims []Dim
	// NoShape leaves the shape out, so that the rank is unknown.
	NoShape bool
	// Sequence makes it a sequence of tensors.
	Sequence bool
}

// Tensor is a constant.
type Tensor struct {
	Name  string
	Type  tensor.Datatype
	Shape tensor.Shape
	// Raw are the bytes of fixed-size elements, Strings the elements of
	// Bytes.
	Raw     []byte
	Strings []string
	// External, if not nil, says where the bytes lie instead: "location" names
	// a file beside the model's, "offset" and "length" a part of it.
	External map[string]string
}

// Attr is a node's attribute. Value is an int64, float32, string, []int64,
// Tensor or Graph.
type Attr struct {
	Name  string
	Value any
}

// Node applies an operator.
type Node struct {
	Op              string
	Inputs, Outputs []string
	Attrs           []Attr
	// Domain is the operator set's; empty is the standard one.
	Domain string
}

// Graph is a model's graph, or a loop's body.
type Graph struct {
	Name            string
	Inputs, Outputs []Value
	Nodes           []Node
	// Initializers are constants by name. One that is named like an input is
	// that input's default.
	Initializers []Tensor
}

// Model is an ONNX model of the default operator set, version 17 unless Opset
// says otherwise, and of version 1 of those that Domains name.
type Model struct {
	Graph   Graph
	Opset   int64
	Domains []string
}

// WriteFile writes the model to a file, whose directory it makes.
func (m Model) WriteFile(t testing.TB, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, m.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}
