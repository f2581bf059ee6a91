package inference_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/proto/internal/listing"
)

// A difference here breaks every client and model repository that exists.
func TestDefinitionsAreThoseOfTritonsClient(t *testing.T) {
	content, err := os.ReadFile("testdata/tritonclient.txt")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(content), "\n") // the first line says where it is from
	want := strings.Split(strings.TrimSpace(text), "\n")
	got := listing.Of(inference.File_inference_v2_grpc_service_proto, inference.File_inference_v2_model_config_proto)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("definitions differ (-tritonclient +ours):\n%s", diff)
	}
}

func TestInferRequestRoundTrips(t *testing.T) {
	want := &inference.ModelInferRequest{
		ModelName:    "add_sub",
		ModelVersion: "1",
		Id:           "42",
		Parameters: map[string]*inference.InferParameter{
			"sequence_id": {ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: 7}},
			"priority":    {ParameterChoice: &inference.InferParameter_Uint64Param{Uint64Param: 1 << 63}},
		},
		Inputs: []*inference.ModelInferRequest_InferInputTensor{
			{Name: "INPUT0", Datatype: "INT32", Shape: []int64{1, 2}},
			{
				Name: "INPUT1", Datatype: "BYTES", Shape: []int64{1, 2},
				Contents: &inference.InferTensorContents{BytesContents: [][]byte{[]byte("a"), {}}},
			},
		},
		Outputs:          []*inference.ModelInferRequest_InferRequestedOutputTensor{{Name: "OUTPUT0"}},
		RawInputContents: [][]byte{{1, 0, 0, 0, 2, 0, 0, 0}, {}},
	}
	wire, err := proto.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got := new(inference.ModelInferRequest)
	if err := proto.Unmarshal(wire, got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("request differs after a round trip (-want +got):\n%s", diff)
	}
}

func TestConfigIsReadFromText(t *testing.T) {
	const text = `
name: "digits"
backend: "onnxruntime"
max_batch_size: 8
input [{ name: "image" data_type: TYPE_FP32 dims: [ 1, 28, 28 ] reshape { shape: [ 784 ] } }]
dynamic_batching { preferred_batch_size: [ 4, 8 ] priority_queue_policy { key: 1 value: { timeout_action: DELAY } } }
instance_group [{ count: 2 kind: KIND_CPU }]
parameters { key: "intra_op_thread_count" value: { string_value: "1" } }
`
	got := new(inference.ModelConfig)
	if err := prototext.Unmarshal([]byte(text), got); err != nil {
		t.Fatal(err)
	}
	want := &inference.ModelConfig{
		Name: "digits", Backend: "onnxruntime", MaxBatchSize: 8,
		Input: []*inference.ModelInput{{
			Name: "image", DataType: inference.DataType_TYPE_FP32, Dims: []int64{1, 28, 28},
			Reshape: &inference.ModelTensorReshape{Shape: []int64{784}},
		}},
		SchedulingChoice: &inference.ModelConfig_DynamicBatching{DynamicBatching: &inference.ModelDynamicBatching{
			PreferredBatchSize: []int32{4, 8},
			PriorityQueuePolicy: map[uint64]*inference.ModelQueuePolicy{
				1: {TimeoutAction: inference.ModelQueuePolicy_DELAY},
			},
		}},
		InstanceGroup: []*inference.ModelInstanceGroup{{Count: 2, Kind: inference.ModelInstanceGroup_KIND_CPU}},
		Parameters:    map[string]*inference.ModelParameter{"intra_op_thread_count": {StringValue: "1"}},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("configuration differs (-want +got):\n%s", diff)
	}
}
