package jsoninfer_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/invariant"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/jsoninfer"
)

// floats writes a request for n random float32s, as the shortest text or with
// the digits of the double of the same value, as Python's tolist gives them.
func floats(n, bits int) []byte {
	random := rand.New(rand.NewPCG(1, 2))
	b := fmt.Appendf(nil, `{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,%d],"data":[`, n)
	for i := range n {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendFloat(b, float64(random.Float32()), 'f', -1, bits)
	}
	return append(b, "]}]}"...)
}

// The hot path's allocations have a ceiling: the inputs and the shapes of a
// request, and nothing for a response.
func TestAllocationsStayFew(t *testing.T) {
	if invariant.Enabled {
		t.Skip("the race detector makes pools forget, so that they allocate")
	}
	config := &modelconfig.Config{Inputs: []modelconfig.IO{{Name: "INPUT0", Datatype: tensor.FP32, Dims: tensor.Shape{-1}}}}
	d := jsoninfer.Decoder{Pool: tensor.NewPool(1 << 20), MaxTensor: 1 << 20}
	body := floats(16, 64)
	var e jsoninfer.Envelope
	var r infer.Request
	decoding := testing.AllocsPerRun(100, func() {
		r = infer.Request{}
		if err := d.Decode(body, config, &r, &e); err != nil {
			t.Fatal(err)
		}
		r.Release()
	})
	p := &infer.Response{Outputs: []infer.Tensor{output(tensor.FP32, le(make([]float32, 16)), 16)}}
	text := make([]byte, 0, 1<<10)
	encoding := testing.AllocsPerRun(100, func() {
		if _, err := jsoninfer.AppendResponse(text, "id", infer.ModelRef{Name: "m", Version: 1}, p, &e, nil); err != nil {
			t.Fatal(err)
		}
	})
	if decoding > 2 || encoding > 0 {
		t.Errorf("%v allocations to decode and %v to encode, want at most 2 and 0", decoding, encoding)
	}
}

func BenchmarkDecode(b *testing.B) {
	config := &modelconfig.Config{Inputs: []modelconfig.IO{{Name: "INPUT0", Datatype: tensor.FP32, Dims: tensor.Shape{-1}}}}
	for _, n := range []int{16, 150528} {
		for _, bits := range []int{32, 64} {
			b.Run(fmt.Sprintf("elements=%d/text=float%d", n, bits), func(b *testing.B) {
				body := floats(n, bits)
				d := jsoninfer.Decoder{Pool: tensor.NewPool(1 << 20), MaxTensor: 1 << 20}
				var e jsoninfer.Envelope
				inputs := make([]infer.Tensor, 0, 1)
				b.SetBytes(int64(len(body)))
				b.ReportAllocs()
				for b.Loop() {
					r := infer.Request{Inputs: inputs}
					e.Reset()
					if err := d.Decode(body, config, &r, &e); err != nil {
						b.Fatal(err)
					}
					r.Release()
				}
			})
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{16, 150528} {
		b.Run(fmt.Sprintf("elements=%d", n), func(b *testing.B) {
			values := make([]float32, n)
			for i := range values {
				values[i] = random.Float32()
			}
			p := &infer.Response{Outputs: []infer.Tensor{output(tensor.FP32, le(values), 1, int64(n))}}
			var e jsoninfer.Envelope
			var text []byte
			b.ReportAllocs()
			for b.Loop() {
				var err error
				if text, err = jsoninfer.AppendResponse(text[:0], "", infer.ModelRef{Name: "m", Version: 1}, p, &e, nil); err != nil {
					b.Fatal(err)
				}
			}
			b.SetBytes(int64(len(text)))
		})
	}
}
