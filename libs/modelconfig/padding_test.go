package modelconfig_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

func TestSizesThatDimensionsArePaddedTo(t *testing.T) {
	const large = 1 << 24
	for name, tt := range map[string]struct {
		buckets []int64
		want    map[int64]int64
	}{
		"listed":        {[]int64{4, 10}, map[int64]int64{0: 4, 1: 4, 4: 4, 5: 10, 10: 10, 11: 11, 500: 500}},
		"powers of two": {nil, map[int64]int64{0: 1, 1: 1, 2: 2, 3: 4, 33: 64, large - 1: large, large: large, large + 1: large + 1}},
	} {
		p := &modelconfig.Padding{Buckets: tt.buckets, Inputs: []modelconfig.PaddedInput{{Name: "x", Dims: []int{1}}}}
		for size, want := range tt.want {
			if got := p.Size("x", 1, size); got != want {
				t.Errorf("%s: %d is padded to %d, want %d", name, size, got, want)
			}
			for what, got := range map[string]int64{
				"another dimension": p.Size("x", 0, size), "another input": p.Size("y", 1, size),
				"no padding": (*modelconfig.Padding)(nil).Size("x", 1, size),
			} {
				if got != size {
					t.Errorf("%s: %s is padded from %d to %d", name, what, size, got)
				}
			}
		}
	}
}

func TestShapesThatPaddingMakesAlike(t *testing.T) {
	p := &modelconfig.Padding{Buckets: []int64{4, 8}, Inputs: []modelconfig.PaddedInput{{Name: "x", Dims: []int{0}}}}
	for _, tt := range []struct {
		input string
		a, b  tensor.Shape
		want  bool
	}{
		{"x", tensor.Shape{1, 3}, tensor.Shape{4, 3}, true},
		{"x", tensor.Shape{4, 3}, tensor.Shape{5, 3}, false},
		{"x", tensor.Shape{9, 3}, tensor.Shape{9, 3}, true},
		{"x", tensor.Shape{9, 3}, tensor.Shape{10, 3}, false},
		{"x", tensor.Shape{1, 3}, tensor.Shape{1, 4}, false},
		{"x", tensor.Shape{1}, tensor.Shape{1, 1}, false},
		{"y", tensor.Shape{1}, tensor.Shape{2}, false},
		{"y", nil, nil, true},
	} {
		if got := p.Alike(tt.input, tt.a, tt.b); got != tt.want {
			t.Errorf("%s: %v and %v are alike: %t, want %t", tt.input, tt.a, tt.b, got, tt.want)
		}
	}
}

func TestPaddingIsReadFromParameters(t *testing.T) {
	text := `name: "m" backend: "onnxruntime" max_batch_size: 8 dynamic_batching { }
input [
  { name: "ids" data_type: TYPE_INT64 dims: [ -1, -1 ] }, { name: "a=b[0]" data_type: TYPE_FP32 dims: -1 },
  { name: "on" data_type: TYPE_BOOL dims: -1 }, { name: "small" data_type: TYPE_INT8 dims: -1 },
  { name: "large" data_type: TYPE_UINT16 dims: -1 }, { name: "exact" data_type: TYPE_FP64 dims: -1 }, { name: "half" data_type: TYPE_FP16 dims: -1 }
]
output { name: "out" data_type: TYPE_FP32 dims: [ 3, -1 ] }
parameters { key: "padding.inputs" value { string_value: "ids[0], ids[1],a=b[0][0],on[0],small[0],large[0],exact[0],half[0]" } }
parameters { key: "padding.values" value { string_value: "a=b[0]=0.5, on=true, small=-1, large=65535, exact=1, half=0" } }
parameters { key: "padding.outputs" value { string_value: "out[1]=a=b[0][0]" } }
parameters { key: "padding.buckets" value { string_value: "16,32" } }`
	message := new(inference.ModelConfig)
	if err := prototext.Unmarshal([]byte(text), message); err != nil {
		t.Fatal(err)
	}
	c, err := modelconfig.FromProto(message)
	if err != nil {
		t.Fatal(err)
	}
	want := &modelconfig.Padding{
		Buckets: []int64{16, 32},
		Inputs: []modelconfig.PaddedInput{
			{Name: "ids", Dims: []int{0, 1}, Value: make([]byte, 8)},
			{Name: "a=b[0]", Dims: []int{0}, Value: []byte{0, 0, 0, 0x3f}},
			{Name: "on", Dims: []int{0}, Value: []byte{1}},
			{Name: "small", Dims: []int{0}, Value: []byte{0xff}},
			{Name: "large", Dims: []int{0}, Value: []byte{0xff, 0xff}},
			{Name: "exact", Dims: []int{0}, Value: []byte{0, 0, 0, 0, 0, 0, 0xf0, 0x3f}},
			{Name: "half", Dims: []int{0}, Value: []byte{0, 0}},
		},
		Outputs: []modelconfig.TrimmedOutput{{Name: "out", Dim: 1, Input: "a=b[0]", InputDim: 0}},
	}
	if d := cmp.Diff(want, c.Padding); d != "" {
		t.Error(d)
	}
	message.Parameters["padding.buckets"].StringValue = "powers_of_two"
	if c, err = modelconfig.FromProto(message); err != nil || c.Padding.Buckets != nil {
		t.Errorf("powers of two: %v, buckets %v", err, c.Padding.Buckets)
	}
	message.Parameters = nil
	if c, err = modelconfig.FromProto(message); err != nil || c.Padding != nil {
		t.Errorf("without parameters: %v, padding %v", err, c.Padding)
	}
}
