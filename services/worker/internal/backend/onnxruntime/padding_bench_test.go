//go:build cgo

package onnxruntime_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
)

// encoder has layers of masked attention and two matrices behind it, as text
// encoders do, over rows of width numbers.
func encoder(layers int, width int64) onnxmodel.Model {
	const d = tensor.FP32
	r := rand.New(rand.NewPCG(1, 1))
	weight := func(name string, dims ...int64) onnxmodel.Tensor {
		n, _ := tensor.Shape(dims).Elements()
		data := make([]float32, n)
		for i := range data {
			data[i] = (r.Float32() - 0.5) / float32(width)
		}
		return onnxmodel.Tensor{Name: name, Type: d, Shape: dims, Raw: []byte(pack(data))}
	}
	number := func(name string, v float32) onnxmodel.Tensor {
		return onnxmodel.Tensor{Name: name, Type: d, Shape: tensor.Shape{}, Raw: []byte(pack(v))}
	}
	g := onnxmodel.Graph{
		Name: "encoder",
		Inputs: []onnxmodel.Value{
			{Name: "INPUT0", Type: d, Dims: onnxmodel.Dims("batch", "n", int(width))},
			{Name: "MASK", Type: d, Dims: onnxmodel.Dims("batch", "n")},
		},
		Outputs:      []onnxmodel.Value{{Name: "OUTPUT0", Type: d, Dims: onnxmodel.Dims("batch", "n", int(width))}},
		Initializers: []onnxmodel.Tensor{number("one", 1), number("much", 1e9), {Name: "axis", Type: tensor.Int64, Shape: tensor.Shape{1}, Raw: []byte(pack(int64(1)))}},
	}
	node := func(op, to string, from ...string) *onnxmodel.Node {
		g.Nodes = append(g.Nodes, onnxmodel.Node{Op: op, Inputs: from, Outputs: []string{to}})
		return &g.Nodes[len(g.Nodes)-1]
	}
	node("Unsqueeze", "columns", "MASK", "axis")
	node("Sub", "hidden", "columns", "one")
	node("Mul", "bias", "hidden", "much")
	x := "INPUT0"
	for l := range layers {
		of := func(name string) string { return fmt.Sprintf("%s%d", name, l) }
		for _, name := range []string{"wq", "wk", "wv"} {
			g.Initializers = append(g.Initializers, weight(of(name), width, width))
		}
		g.Initializers = append(g.Initializers, weight(of("w1"), width, 4*width), weight(of("w2"), 4*width, width))
		node("MatMul", of("q"), x, of("wq"))
		node("MatMul", of("k"), x, of("wk"))
		node("MatMul", of("v"), x, of("wv"))
		node("Transpose", of("kt"), of("k")).Attrs = []onnxmodel.Attr{{Name: "perm", Value: []int64{0, 2, 1}}}
		node("MatMul", of("s"), of("q"), of("kt"))
		node("Add", of("m"), of("s"), "bias")
		node("Softmax", of("p"), of("m"))
		node("MatMul", of("a"), of("p"), of("v"))
		node("Add", of("y"), x, of("a"))
		node("MatMul", of("h"), of("y"), of("w1"))
		node("Relu", of("r"), of("h"))
		node("MatMul", of("o"), of("r"), of("w2"))
		if x = of("x"); l == layers-1 {
			x = "OUTPUT0"
		}
		node("Add", x, of("y"), of("o"))
	}
	return onnxmodel.Model{Graph: g}
}

// BenchmarkPadding runs 16 requests of some tokens, each by itself and
// padded; µs/request is the figure to compare.
func BenchmarkPadding(b *testing.B) {
	for _, size := range []struct{ width, longest int64 }{{32, 16}, {128, 16}, {32, 128}, {128, 128}} {
		width, longest := size.width, size.longest
		for name, p := range map[string]*modelconfig.Padding{"alone": nil, "padded": {
			Buckets: []int64{longest / 4, longest / 2, longest * 3 / 4, longest},
			Inputs: []modelconfig.PaddedInput{
				{Name: "INPUT0", Dims: []int{0}, Value: make([]byte, 4)}, {Name: "MASK", Dims: []int{0}, Value: make([]byte, 4)},
			},
			Outputs: []modelconfig.TrimmedOutput{{Name: "OUTPUT0", Dim: 0, Input: "INPUT0", InputDim: 0}},
		}} {
			b.Run(fmt.Sprintf("encoder of width %d, up to %d tokens/%s", width, longest, name), func(b *testing.B) {
				const d, n = tensor.FP32, 16
				ort, _ := open(b)
				c := config(n, ios(io("INPUT0", d, -1, width), io("MASK", d, -1)), ios(io("OUTPUT0", d, -1, width)))
				c.Padding, c.Parameters = p, map[string]string{"intra_op_thread_count": "1"}
				in := instance(b, ort, encoder(2, width), c)
				r, batch := rand.New(rand.NewPCG(1, 2)), &repeated{}
				for range n {
					length := 1 + r.Int64N(longest)
					batch.requests = append(batch.requests, request(1,
						value{"INPUT0", d, tensor.Shape{1, length, width}, pack(slices.Repeat([]float32{0.5}, int(length*width)))},
						value{"MASK", d, tensor.Shape{1, length}, pack(slices.Repeat([]float32{1}, int(length)))}))
				}
				for b.Loop() {
					in.Execute(batch)
				}
				if batch.failed != nil {
					b.Fatal(batch.failed)
				}
				b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*n), "µs/request")
				for _, r := range batch.requests {
					r.Release()
				}
			})
		}
	}
}
