package e2e

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// BenchmarkBesideABusyModel measures requests of a small model alone, and
// while another model runs on every core in C, some 50 ms at a time: what the
// small one then loses is its fair share of the cores, not more. The threads
// that run Go are one for each core and each instance; with GOMAXPROCS set in
// the environment they are as many as it says.
func BenchmarkBesideABusyModel(b *testing.B) {
	dir := repository(b, map[string]string{
		"simple/1/model.onnx": string(onnxmodel.AddSub(tensor.Int32, "batch", 16).Bytes()),
		"busy/1/model.onnx":   string(product().Bytes()),
		"busy/config.pbtxt": fmt.Sprintf(`backend: "onnxruntime"
instance_group [ { kind: KIND_CPU count: %d } ]
parameters { key: "intra_op_thread_count" value: { string_value: "1" } }
`, runtime.NumCPU()),
	})
	s := start(b, dir)
	defer s.kill()
	small := s.callGRPC(b)
	for _, concurrency := range []int{1, 16} {
		b.Run(fmt.Sprintf("alone/concurrency=%d", concurrency), func(b *testing.B) { s.measure(b, concurrency, small) })
	}
	var side int64 = 1024
	raw := binary.LittleEndian.AppendUint64(nil, uint64(side))
	stop := s.occupy(b, runtime.NumCPU(), s.caller(b, &inference.ModelInferRequest{
		ModelName:        "busy",
		Inputs:           []*inference.ModelInferRequest_InferInputTensor{{Name: "INPUT0", Datatype: "INT64", Shape: []int64{2}}},
		RawInputContents: [][]byte{append(raw, raw...)},
	}))
	for _, concurrency := range []int{1, 16} {
		b.Run(fmt.Sprintf("beside/concurrency=%d", concurrency), func(b *testing.B) { s.measure(b, concurrency, small) })
	}
	stop()
}

// occupy keeps so many calls under way until stop is called. One has been
// answered before it returns.
func (s *server) occupy(b *testing.B, calls int, call func(context.Context) error) (stop func()) {
	b.Helper()
	if err := call(b.Context()); err != nil { // connects
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	var all sync.WaitGroup
	for range calls {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := call(ctx); err != nil && ctx.Err() == nil {
					b.Error(err)
					return
				}
			}
		})
	}
	return func() {
		cancel()
		all.Wait()
	}
}

// product multiplies a matrix of ones, whose shape is INPUT0, with itself
// twice: OUTPUT0 is the sum.
func product() onnxmodel.Model {
	one := onnxmodel.Tensor{Type: tensor.FP32, Shape: tensor.Shape{1}, Raw: []byte{0, 0, 0x80, 0x3f}}
	return onnxmodel.Model{Graph: onnxmodel.Graph{
		Name:    "product",
		Inputs:  []onnxmodel.Value{{Name: "INPUT0", Type: tensor.Int64, Dims: onnxmodel.Dims(2)}},
		Outputs: []onnxmodel.Value{{Name: "OUTPUT0", Type: tensor.FP32, Dims: onnxmodel.Dims(1, 1)}},
		Nodes: []onnxmodel.Node{
			{Op: "ConstantOfShape", Inputs: []string{"INPUT0"}, Outputs: []string{"ones"}, Attrs: []onnxmodel.Attr{{Name: "value", Value: one}}},
			{Op: "MatMul", Inputs: []string{"ones", "ones"}, Outputs: []string{"square"}},
			{Op: "MatMul", Inputs: []string{"square", "ones"}, Outputs: []string{"cube"}},
			{Op: "ReduceSum", Inputs: []string{"cube"}, Outputs: []string{"OUTPUT0"}, Attrs: []onnxmodel.Attr{{Name: "keepdims", Value: int64(1)}}},
		},
	}}
}
