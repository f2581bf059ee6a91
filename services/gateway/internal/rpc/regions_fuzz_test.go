package rpc

import (
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/tensor"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc/wire"
)

// FuzzSharedTensors reads any message's tensors in client shared memory: each input gets
// its data from one place, and nothing is kept of a message that is refused.
func FuzzSharedTensors(f *testing.F) {
	text := func(s string) *inference.InferParameter {
		return &inference.InferParameter{ParameterChoice: &inference.InferParameter_StringParam{StringParam: s}}
	}
	number := func(n int64) *inference.InferParameter {
		return &inference.InferParameter{ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: n}}
	}
	for _, p := range []map[string]*inference.InferParameter{
		{"shared_memory_region": text("r"), "shared_memory_byte_size": number(8), "shared_memory_offset": number(-1)},
		{"shared_memory_region": number(1)},
		{"shared_memory_offset": number(1)},
		{"classification": number(2), "shared_memory_region": text("")},
		nil,
	} {
		m, err := proto.Marshal(&inference.ModelInferRequest{
			Inputs:           []*inference.ModelInferRequest_InferInputTensor{{Name: "A", Datatype: "FP32", Shape: []int64{2}, Parameters: p}, {Name: "B", Datatype: "FP32", Shape: []int64{2}}},
			Outputs:          []*inference.ModelInferRequest_InferRequestedOutputTensor{{Name: "C", Parameters: p}},
			RawInputContents: [][]byte{make([]byte, 8)},
		})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(m)
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		pool := tensor.NewPool(0)
		var r wire.Request
		if wire.Decode(t.Context(), mem.BufferSlice{mem.SliceBuffer(message)}, pool, nil, &r) != nil {
			return
		}
		for i := range r.Inputs {
			of, given, err := sharedInput(&r.Inputs[i], "m")
			if err != nil && !errs.Of(err).Known() || err == nil && !given && of.Region != "" {
				t.Errorf("%+v, %v, %v", of, given, err)
			}
			r.Inputs[i].Shared = given && err == nil
		}
		for i := range r.Outputs {
			if classes, _, shared, err := readOutput(&r.Outputs[i]); err == nil && shared && classes > 0 {
				t.Errorf("an output in a region has %d classes", classes)
			}
		}
		tensors, err := r.Tensors()
		if err == nil {
			for i := range tensors {
				if r.Inputs[i].Shared && tensors[i].Data.Length != 0 {
					t.Errorf("the input %d has data twice", i)
				}
				tensors[i].Data.Release()
			}
		}
		if r.Reset(); pool.Stats().InUse != 0 {
			t.Error("tensors are left")
		}
	})
}
