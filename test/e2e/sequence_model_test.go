package e2e

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// accumulators are ONNX models that give the sum of their inputs since START: of
// both strategies, and of one whose inputs and outputs are completed.
func accumulators() map[string]string {
	const state = `state { input_name: "STATE_IN" output_name: "STATE_OUT" data_type: TYPE_FP32 dims: [ 1 ] }`
	const tensors = `input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] } output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] }`
	model := string(onnxmodel.Accumulator(tensor.FP32, "b", 1).Bytes())
	files := make(map[string]string)
	for name, config := range map[string]string{
		"direct":    tensors + `sequence_batching { direct { } max_sequence_idle_microseconds: 60000000 ` + state + `}`,
		"oldest":    tensors + `sequence_batching { oldest { max_candidate_sequences: 8 } max_sequence_idle_microseconds: 60000000 ` + state + `}`,
		"completed": `sequence_batching { max_sequence_idle_microseconds: 60000000 ` + state + `}`,
	} {
		files[name+"/1/model.onnx"] = model
		files[name+"/config.pbtxt"] = `backend: "onnxruntime" max_batch_size: 4 instance_group { count: 2 kind: KIND_CPU } ` + config
	}
	return files
}

// accumulate sends one request of a sequence, and returns its sum.
type accumulate func(model string, sequence uint64, x float32, start, end bool) (float32, error)

func (s *server) overHTTP(model string, sequence uint64, x float32, start, end bool) (sum float32, err error) {
	status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/"+model+"/infer", fmt.Sprintf(
		`{"parameters":{"sequence_id":%d,"sequence_start":%t,"sequence_end":%t},"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[%v]}]}`, sequence, start, end, x))
	_, data, ok := strings.Cut(text, `"data":[`)
	if status != http.StatusOK || !ok || strings.Contains(text, "STATE_OUT") {
		return 0, fmt.Errorf("%d %s", status, text)
	}
	_, err = fmt.Sscan(strings.TrimRight(data, "]}\n"), &sum)
	return sum, err
}

func (s *server) overGRPC(client inference.GRPCInferenceServiceClient) accumulate {
	return func(model string, sequence uint64, x float32, start, end bool) (float32, error) {
		r, err := client.ModelInfer(s.t.Context(), addition(model, sequence, x, start, end))
		if err != nil {
			return 0, err
		}
		return sumOf(r)
	}
}

// addition is one request of a sequence.
func addition(model string, sequence uint64, x float32, start, end bool) *inference.ModelInferRequest {
	boolean := func(b bool) *inference.InferParameter {
		return &inference.InferParameter{ParameterChoice: &inference.InferParameter_BoolParam{BoolParam: b}}
	}
	return &inference.ModelInferRequest{
		ModelName: model, Inputs: []*inference.ModelInferRequest_InferInputTensor{{Name: "INPUT0", Datatype: "FP32", Shape: []int64{1, 1}}},
		RawInputContents: [][]byte{binary.LittleEndian.AppendUint32(nil, math.Float32bits(x))},
		Parameters: map[string]*inference.InferParameter{
			"sequence_id":    {ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: int64(sequence)}}, //nolint:gosec // small
			"sequence_start": boolean(start), "sequence_end": boolean(end),
		},
	}
}

func sumOf(r *inference.ModelInferResponse) (float32, error) {
	if len(r.GetOutputs()) != 1 {
		return 0, fmt.Errorf("outputs %v", r.GetOutputs())
	}
	return math.Float32frombits(binary.LittleEndian.Uint32(r.GetRawOutputContents()[0])), nil
}

func TestSequencesKeepTheirState(t *testing.T) {
	s := start(t, repository(t, accumulators()))
	connection, err := grpc.NewClient(s.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	overGRPC := s.overGRPC(inference.NewGRPCInferenceServiceClient(connection))
	var all sync.WaitGroup
	for _, model := range []string{"direct", "oldest", "completed"} {
		for sequence := range uint64(20) { // more than there are slots, in direct
			all.Go(func() {
				send := s.overHTTP
				if sequence%2 == 0 {
					send = overGRPC
				}
				sum := float32(0)
				for n := range 12 {
					x := float32(n) + float32(sequence)
					if n == 6 {
						sum = 0 // it begins anew
					}
					sum += x
					got, err := send(model, sequence+1, x, n%6 == 0, n == 11)
					if err != nil || got != sum {
						t.Errorf("%s, request %d of sequence %d: %v, %v, want %v", model, n, sequence+1, got, err, sum)
						return
					}
				}
				const begun = "must specify the START flag on the first request of the sequence"
				if _, err := send(model, sequence+1, 0, false, false); err == nil || !strings.Contains(err.Error(), begun) {
					t.Errorf("%s, after the end of sequence %d: %v", model, sequence+1, err)
				}
			})
		}
	}
	all.Wait()
}

// Clients do not see the tensors that the server gives and takes.
func TestStatesAreNoInputsOfRequests(t *testing.T) {
	s := start(t, repository(t, accumulators()))
	if status, text := s.do(http.MethodGet, s.HTTP+"/v2/models/completed", ""); status != http.StatusOK || strings.Contains(text, "STATE") || !strings.Contains(text, "INPUT0") {
		t.Errorf("metadata: %d %s", status, text)
	}
	const state = `{"parameters":{"sequence_id":1,"sequence_start":true},"inputs":[{"name":"%s","datatype":"FP32","shape":[1,1],"data":[1]}]}`
	for _, tt := range []struct{ body, want string }{
		{fmt.Sprintf(state, "STATE_IN"), "unexpected inference input 'STATE_IN' for model 'direct'"},
		{strings.Replace(fmt.Sprintf(state, "INPUT0"), `"inputs"`, `"outputs":[{"name":"STATE_OUT"}],"inputs"`, 1), "unexpected inference output 'STATE_OUT' for model 'direct'"},
	} {
		if status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/direct/infer", tt.body); status != http.StatusBadRequest || !strings.Contains(text, tt.want) {
			t.Errorf("%d %s, want %s", status, text, tt.want)
		}
	}
}
