package classify_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/classify"
)

// The outputs of an image classifier, and rows in the order that is dearest.
func BenchmarkApply(b *testing.B) {
	for _, c := range []struct {
		name     string
		width, k int
		fill     func(i int) float32
	}{
		{name: "random", width: 1000, k: 5, fill: func(int) float32 { return rand.Float32() }},
		{name: "random", width: classify.MaxElements, k: 5, fill: func(int) float32 { return rand.Float32() }},
		{name: "ascending", width: 1000, k: 5, fill: func(i int) float32 { return float32(i) }},
		{name: "all", width: 1000, k: 1000, fill: func(int) float32 { return rand.Float32() }},
	} {
		b.Run(fmt.Sprintf("%s/%d_of_%d", c.name, c.k, c.width), func(b *testing.B) {
			scores := make([]float32, c.width)
			for i := range scores {
				scores[i] = c.fill(i)
			}
			config, asked := model(tensor.FP32, true), []classify.Output{{Name: "OUT", Classes: uint64(c.k)}}
			out := infer.Tensor{Name: "OUT", Datatype: tensor.FP32, Shape: tensor.Shape{1, int64(c.width)}}
			data := bytesOf(b, scores)
			b.ReportAllocs()
			b.SetBytes(int64(len(data)))
			p := &infer.Response{Outputs: make([]infer.Tensor, 1)}
			for b.Loop() {
				p.Outputs[0] = out
				p.Outputs[0].Data = tensor.InHeap(data)
				if err := classify.Apply(config, asked, p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
