package e2e

import (
	"encoding/binary"
	"fmt"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// several gives so many responses to each request.
func several(responses int) string {
	return fmt.Sprintf(`
backend: "echo"
max_batch_size: 4
model_transaction_policy { decoupled: true }
input [{ name: "x" data_type: TYPE_INT32 dims: [1] }]
output [{ name: "y" data_type: TYPE_INT32 dims: [1] }]
parameters [{ key: "responses" value: { string_value: "%d" } }]
`, responses)
}

func TestDecoupledModelsGiveSeveralResponses(t *testing.T) {
	s := start(t, repository(t, map[string]string{
		"three/config.pbtxt": several(3), "three/1/.keep": "", "none/config.pbtxt": several(0), "none/1/.keep": "",
	}))
	connection, err := grpc.NewClient(s.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	client := inference.NewGRPCInferenceServiceClient(connection)
	request := func(model string, value uint32, empty bool) *inference.ModelInferRequest {
		return &inference.ModelInferRequest{
			ModelName: model, Id: fmt.Sprint(value),
			Inputs:           []*inference.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "INT32", Shape: []int64{1, 1}}},
			RawInputContents: [][]byte{binary.LittleEndian.AppendUint32(nil, value)},
			Parameters: map[string]*inference.InferParameter{
				"triton_enable_empty_final_response": {ParameterChoice: &inference.InferParameter_BoolParam{BoolParam: empty}},
			},
		}
	}
	stream, err := client.ModelStreamInfer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const requests = 50
	for i := range uint32(requests) {
		if err := stream.Send(request("three", i, false)); err != nil {
			t.Fatal(err)
		}
	}
	for _, empty := range []bool{false, true} { // of which one is told of its end
		if err := stream.Send(request("none", 1000, empty)); err != nil {
			t.Fatal(err)
		}
	}
	given, ends := make(map[string]int), 0
	for range 3*requests + 1 {
		item, err := stream.Recv()
		if err != nil || item.ErrorMessage != "" {
			t.Fatalf("%v, %v", item, err)
		}
		r := item.InferResponse
		final := r.Parameters["triton_final_response"].GetBoolParam()
		if r.ModelName == "none" {
			if ends++; len(r.Outputs) != 0 || !final {
				t.Errorf("the end is %v", r)
			}
			continue
		}
		if given[r.Id]++; final != (given[r.Id] == 3) || fmt.Sprint(binary.LittleEndian.Uint32(r.RawOutputContents[0])) != r.Id {
			t.Errorf("response %d is %v", given[r.Id], r)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if item, err := stream.Recv(); err == nil || len(given) != requests || ends != 1 {
		t.Errorf("%d requests and %d ends, then %v", len(given), ends, item)
	}
	if _, err := client.ModelInfer(t.Context(), request("three", 1, false)); status.Code(err) != codes.Unimplemented {
		t.Errorf("as a call: %v", err)
	}
}
