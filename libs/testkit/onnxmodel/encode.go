package onnxmodel

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nereid-serving/nereid/libs/tensor"
)

// irVersion is the format's version: 8 belongs to operator set 17.
const irVersion, standardOpset = 8, 17

// Bytes encodes the model. The field numbers are those of onnx.proto.
func (m Model) Bytes() []byte {
	opset := m.Opset
	if opset == 0 {
		opset = standardOpset
	}
	b := integer(nil, 1, irVersion)
	b = text(b, 2, "nereid-test")
	b = message(b, 7, m.Graph.encode())
	b = message(b, 8, integer(text(nil, 1, ""), 2, opset))
	for _, domain := range m.Domains {
		b = message(b, 8, integer(text(nil, 1, domain), 2, 1))
	}
	return b
}

func (g Graph) encode() (b []byte) {
	for _, n := range g.Nodes {
		b = message(b, 1, n.encode())
	}
	b = text(b, 2, g.Name+"_graph")
	for _, t := range g.Initializers {
		b = message(b, 5, t.encode())
	}
	for _, v := range g.Inputs {
		b = message(b, 11, v.encode())
	}
	for _, v := range g.Outputs {
		b = message(b, 12, v.encode())
	}
	return b
}

func (n Node) encode() (b []byte) {
	for _, name := range n.Inputs {
		b = text(b, 1, name)
	}
	for _, name := range n.Outputs {
		b = text(b, 2, name)
	}
	b = text(b, 4, n.Op)
	for _, a := range n.Attrs {
		b = message(b, 5, a.encode())
	}
	if n.Domain != "" {
		b = text(b, 7, n.Domain)
	}
	return b
}

func (a Attr) encode() []byte {
	const kindField = 20
	b := text(nil, 1, a.Name)
	switch v := a.Value.(type) {
	case float32:
		b = protowire.AppendTag(b, 2, protowire.Fixed32Type)
		return integer(protowire.AppendFixed32(b, math.Float32bits(v)), kindField, 1)
	case int64:
		return integer(integer(b, 3, v), kindField, 2)
	case string:
		return integer(text(b, 4, v), kindField, 3)
	case Tensor:
		return integer(message(b, 5, v.encode()), kindField, 4)
	case Graph:
		return integer(message(b, 6, v.encode()), kindField, 5)
	case []int64:
		for _, n := range v {
			b = integer(b, 8, n)
		}
		return integer(b, kindField, 7)
	}
	panic(fmt.Sprintf("onnxmodel: attribute %s of type %T", a.Name, a.Value))
}

func (t Tensor) encode() (b []byte) {
	for _, d := range t.Shape {
		b = integer(b, 1, d)
	}
	b = integer(b, 2, ElementType(t.Type))
	for _, s := range t.Strings {
		b = text(b, 6, s)
	}
	b = text(b, 8, t.Name)
	switch {
	case t.External != nil:
		return t.encodeExternal(b)
	case t.Type == tensor.Bytes:
		return b
	}
	return message(b, 9, t.Raw)
}

func (t Tensor) encodeExternal(b []byte) []byte {
	const external = 1
	for _, key := range slices.Sorted(maps.Keys(t.External)) {
		b = message(b, 13, text(text(nil, 1, key), 2, t.External[key]))
	}
	return integer(b, 14, external)
}

func (v Value) encode() []byte {
	t := integer(nil, 1, ElementType(v.Type))
	if !v.NoShape {
		var shape []byte
		for _, d := range v.Dims {
			shape = message(shape, 1, d.encode())
		}
		t = message(t, 2, shape)
	}
	t = message(nil, 1, t)
	if v.Sequence {
		t = message(nil, 4, message(nil, 1, t))
	}
	return message(text(nil, 1, v.Name), 2, t)
}

func (d Dim) encode() []byte {
	if d.Symbol != "" {
		return text(nil, 2, d.Symbol)
	}
	return integer(nil, 1, d.Size)
}

// ElementType is ONNX's number for a datatype (TensorProto.DataType).
func ElementType(d tensor.Datatype) int64 {
	switch d {
	case tensor.FP32:
		return 1
	case tensor.Uint8:
		return 2
	case tensor.Int8:
		return 3
	case tensor.Uint16:
		return 4
	case tensor.Int16:
		return 5
	case tensor.Int32:
		return 6
	case tensor.Int64:
		return 7
	case tensor.Bytes:
		return 8
	case tensor.Bool:
		return 9
	case tensor.FP16:
		return 10
	case tensor.FP64:
		return 11
	case tensor.Uint32:
		return 12
	case tensor.Uint64:
		return 13
	case tensor.BF16:
		return 16
	}
	return 0
}

func integer(b []byte, field protowire.Number, v int64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), uint64(v))
}

func text(b []byte, field protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), s)
}

func message(b []byte, field protowire.Number, m []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), m)
}
