package e2e

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
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

// repeating is a model of the repeat backend.
const repeating = `
backend: "repeat"
model_transaction_policy { decoupled: true }
input [
  { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] },
  { name: "WAIT" data_type: TYPE_UINT32 dims: [ 1 ] }
]
output [
  { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "IDX" data_type: TYPE_UINT32 dims: [ 1 ] }
]
`

func TestRealClientsOfDecoupledModels(t *testing.T) {
	s := start(t, repository(t, map[string]string{
		"repeat/config.pbtxt": repeating, "repeat/1/.keep": "", "counted/config.pbtxt": repeating, "counted/1/.keep": "",
		"one/config.pbtxt": echo(0), "one/1/.keep": "",
	}))
	python(t, []string{"HTTP_URL=" + s.HTTP, "GRPC_URL=" + s.GRPC}, "test/e2e/clients/test_decoupled.py", "-v")
}

// numbers asks the repeat backend for the numbers below n, without delays.
func numbers(n int) *inference.ModelInferRequest {
	in := make([]byte, 0, 4*n)
	for i := range n {
		in = binary.LittleEndian.AppendUint32(in, uint32(i))
	}
	shape := []int64{int64(n)}
	return &inference.ModelInferRequest{
		ModelName: "repeat", Id: fmt.Sprint(n),
		Inputs: []*inference.ModelInferRequest_InferInputTensor{
			{Name: "IN", Datatype: "INT32", Shape: shape},
			{Name: "DELAY", Datatype: "UINT32", Shape: shape},
			{Name: "WAIT", Datatype: "UINT32", Shape: []int64{1}},
		},
		RawInputContents: [][]byte{in, make([]byte, 4*n), make([]byte, 4)},
	}
}

// openStream opens a stream of a connection of its own, which takes no more than 64
// KiB that its client does not read.
func (s *server) openStream(t *testing.T) inference.GRPCInferenceService_ModelStreamInferClient {
	t.Helper()
	return s.openStreamUntil(t.Context(), t)
}

// openStreamUntil opens a stream that ctx ends.
func (s *server) openStreamUntil(ctx context.Context, t *testing.T) inference.GRPCInferenceService_ModelStreamInferClient {
	t.Helper()
	connection, err := grpc.NewClient(s.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(64<<10), grpc.WithInitialConnWindowSize(64<<10))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	stream, err := inference.NewGRPCInferenceServiceClient(connection).ModelStreamInfer(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// A client that does not read holds its model up, and nobody else: it gets all when
// it reads.
func TestClientsThatDoNotReadHoldTheirOwnStream(t *testing.T) {
	s := start(t, repository(t, map[string]string{"repeat/config.pbtxt": repeating, "repeat/1/.keep": ""}))
	const many, others, each = 100_000, 20, 200
	stalled, other := s.openStream(t), s.openStream(t)
	if err := stalled.Send(numbers(many)); err != nil {
		t.Fatal(err)
	}
	for range others {
		if err := other.Send(numbers(each)); err != nil {
			t.Fatal(err)
		}
	}
	for range others * each {
		if item, err := other.Recv(); err != nil || item.ErrorMessage != "" {
			t.Fatalf("a client beside it got %v, %v", item, err)
		}
	}
	for i := range many {
		item, err := stalled.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if got := item.InferResponse; got == nil || binary.LittleEndian.Uint32(got.RawOutputContents[0]) != uint32(i) {
			t.Fatalf("response %d is %v", i, item)
		}
	}
}

// A client that reads nothing for good is given up, and its model is free again.
func TestModelsOfClientsThatReadNothingAreReleased(t *testing.T) {
	s := start(t, repository(t, map[string]string{"repeat/config.pbtxt": repeating, "repeat/1/.keep": ""}), "--stall-timeout-secs=2")
	stalled := s.openStream(t)
	if err := stalled.Send(numbers(100_000)); err != nil {
		t.Fatal(err)
	}
	s.wantMetrics(
		`nereid_gateway_errors_total{protocol="grpc",reason="response_stalled"} 1`,
		`nv_inference_request_failure{model="repeat",reason="CANCELED",version="1"} 1`,
		"nereid_gateway_in_flight_requests 0",
	)
}

// A decoupled model's first responses are in the buckets that it sets; a model that
// gives one response has none.
func TestFirstResponsesOfDecoupledModelsAreMeasured(t *testing.T) {
	const family = "nv_inference_first_response_histogram_ms"
	const own = `model_metrics { metric_control [{ metric_identifier { family: "` + family + `" } histogram_options { buckets: [ 0, 900000 ] } }] }`
	s := start(t, repository(t, map[string]string{
		"repeat/config.pbtxt": repeating + own, "repeat/1/.keep": "", "one/config.pbtxt": echo(0), "one/1/.keep": "",
	}), "--metrics-config=histogram_latencies=true")
	stream := s.openStream(t)
	const requests, each = 5, 3
	for range requests {
		if err := stream.Send(numbers(each)); err != nil {
			t.Fatal(err)
		}
	}
	for range requests * each {
		if item, err := stream.Recv(); err != nil || item.ErrorMessage != "" {
			t.Fatalf("%v, %v", item, err)
		}
	}
	s.wantMetrics(
		family+`_bucket{model="repeat",version="1",le="0"} 0`,
		family+`_bucket{model="repeat",version="1",le="900000"} 5`,
		family+`_count{model="repeat",version="1"} 5`,
		`nv_inference_request_success{model="repeat",version="1"} 5`,
		`nv_inference_count{model="repeat",version="1"} 5`,
		`nv_inference_exec_count{model="repeat",version="1"} 5`,
		`nv_inference_pending_request_count{model="repeat",version="1"} 0`,
	)
	if strings.Contains(s.metrics(), family+`_count{model="one"`) {
		t.Error("a model that gives one response has a histogram of its first")
	}
}
