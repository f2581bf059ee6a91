package onnxmodel

import (
	"encoding/binary"
	"math"

	"github.com/nereid-serving/nereid/libs/tensor"
)

// Weights gives OUTPUT0 = INPUT0 × W × … × W, FP32 of [batch, n], through as
// many n × n matrices as layers, each half the identity: OUTPUT0 is INPUT0 /
// 2^layers. It has n × n × 4 bytes of weights per layer.
func Weights(layers, n int) Model {
	m := Unary("MatMul", tensor.FP32, "batch", n)
	g := &m.Graph
	g.Nodes = nil
	from := Input0
	for l := range layers {
		weight, to := "w"+string(rune('a'+l)), "x"+string(rune('a'+l))
		if l == layers-1 {
			to = Output0
		}
		g.Initializers = append(g.Initializers, Tensor{Name: weight, Type: tensor.FP32, Shape: tensor.Shape{int64(n), int64(n)}, Raw: halves(n)})
		g.Nodes = append(g.Nodes, Node{Op: "MatMul", Inputs: []string{from, weight}, Outputs: []string{to}})
		from = to
	}
	return m
}

// halves is half the identity matrix.
func halves(n int) []byte {
	raw := make([]byte, n*n*4)
	for i := range n {
		binary.LittleEndian.PutUint32(raw[(i*n+i)*4:], math.Float32bits(0.5))
	}
	return raw
}
