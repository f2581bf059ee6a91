package rpc

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc/wire"
)

// counted is an output of n bytes that says on returned when its last
// reference is gone.
func counted(n int, returned chan<- int) infer.Tensor {
	data := bytes.Repeat([]byte{byte(n)}, n)
	b := tensor.Wrap(data, false, func(*tensor.Buffer) { returned <- n })
	return infer.Tensor{Name: "Y", Datatype: tensor.Uint8, Shape: tensor.Shape{int64(n)}, Data: tensor.InBuffer(b, 0, int64(n))}
}

func TestReplyBorrowsLargeOutputs(t *testing.T) {
	for name, sizes := range map[string][]int{
		"small": {16}, "large": {borrowFrom}, "large and last": {16, borrowFrom + 1},
		"large between": {borrowFrom - 1, borrowFrom, 5000, borrowFrom + 3, 1}, "empty": {},
	} {
		t.Run(name, func(t *testing.T) {
			returned := make(chan int, len(sizes))
			response := infer.Response{}
			for _, n := range sizes {
				response.Outputs = append(response.Outputs, counted(n, returned))
			}
			item := wire.StreamItem{Response: wire.Response{Model: "m", Outputs: response.Outputs}}
			encoded, err := (&call{service: new(service), ticket: new(ticket)}).encode(t.Context(), &item)
			if err != nil {
				t.Fatal(err)
			}
			response.Release()
			var got inference.ModelStreamInferResponse
			if err := proto.Unmarshal(encoded.Materialize(), &got); err != nil {
				t.Fatal(err)
			}
			for i, n := range sizes {
				if raw := got.InferResponse.RawOutputContents[i]; !bytes.Equal(raw, bytes.Repeat([]byte{byte(n)}, n)) {
					t.Errorf("output %d of %d bytes differs", i, n)
				}
			}
			encoded.Free()
			if len(returned) != len(sizes) {
				t.Errorf("%d of %d outputs came back", len(returned), len(sizes))
			}
		})
	}
}
