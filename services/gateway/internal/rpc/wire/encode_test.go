package wire

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

func TestEncodeIsReadByTheGeneratedType(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, want := response(t)
		item := StreamItem{Error: rapid.String().Draw(t, "error"), Response: *r}
		n, err := item.Size()
		if err != nil {
			t.Fatal(err)
		}
		b, _ := item.Append(nil, math.MaxInt64)
		if len(b) != n {
			t.Fatalf("Size is %d, Append wrote %d bytes", n, len(b))
		}
		var got inference.ModelStreamInferResponse
		if err := proto.Unmarshal(b, &got); err != nil {
			t.Fatal(err)
		}
		wantItem := &inference.ModelStreamInferResponse{ErrorMessage: item.Error, InferResponse: want}
		if diff := cmp.Diff(wantItem, &got, protocmp.Transform()); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	})
}

func response(t *rapid.T) (*Response, *inference.ModelInferResponse) {
	text := func(label string) string { return rapid.String().Draw(t, label) }
	r := &Response{Model: text("model"), Version: text("version"), ID: text("id")}
	m := &inference.ModelInferResponse{ModelName: r.Model, ModelVersion: r.Version, Id: r.ID, Parameters: map[string]*inference.InferParameter{}}
	for key, p := range parameters().Draw(t, "parameters") {
		value := wantParameters(map[string]*inference.InferParameter{key: p})[key]
		switch c := p.ParameterChoice.(type) {
		case *inference.InferParameter_DoubleParam:
			value = c.DoubleParam
		case nil, *inference.InferParameter_Uint64Param:
			continue // responses have neither
		}
		r.Parameters = append(r.Parameters, infer.Parameter{Key: key, Value: value})
		m.Parameters[key] = p
	}
	for range rapid.IntRange(0, 3).Draw(t, "outputs") {
		out := infer.Tensor{Name: text("name"), Datatype: rapid.SampledFrom(tensor.Datatypes()).Draw(t, "datatype")}
		out.Shape = rapid.SliceOf(rapid.Int64()).Draw(t, "shape")
		data := rapid.SliceOf(rapid.Byte()).Draw(t, "data")
		out.Data = tensor.InHeap(data)
		r.Outputs = append(r.Outputs, out)
		m.Outputs = append(m.Outputs, &inference.ModelInferResponse_InferOutputTensor{Name: out.Name, Datatype: out.Datatype.String(), Shape: out.Shape})
		m.RawOutputContents = append(m.RawOutputContents, data)
	}
	return r, m
}

func TestEncodeRefuses(t *testing.T) {
	tests := map[string]Response{
		"a parameter without a type": {Parameters: []infer.Parameter{{Key: "k", Value: []int{1}}}},
		"bytes of another host":      {Outputs: []infer.Tensor{{Name: "Y", Data: tensor.Ref{Place: tensor.Remote}}}},
	}
	for name, r := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := r.Size(); err == nil {
				t.Error("accepted")
			}
		})
	}
}

func BenchmarkEncode(b *testing.B) {
	for name, n := range map[string]int{"small": 64, "600KiB": 300 << 10} {
		b.Run(name, func(b *testing.B) {
			out := func(name string) infer.Tensor {
				return infer.Tensor{Name: name, Datatype: tensor.Int32, Shape: tensor.Shape{1, 16}, Data: tensor.InHeap(make([]byte, n))}
			}
			r := &Response{Model: "add_sub", Version: "1", ID: "7", Outputs: []infer.Tensor{out("OUTPUT0"), out("OUTPUT1")}}
			size, err := r.Size()
			if err != nil {
				b.Fatal(err)
			}
			buffer := make([]byte, 0, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				_, _ = r.Size()
				r.Append(buffer, math.MaxInt64)
			}
		})
	}
}
