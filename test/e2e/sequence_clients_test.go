package e2e

import (
	"testing"

	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
)

// TestSequencesOfTheRealClients has the real clients run 64 sequences at once over 8
// slots, in streams, begin anew, be idle, time out in the backlog and be canceled.
func TestSequencesOfTheRealClients(t *testing.T) {
	const state = `state { input_name: "STATE_IN" output_name: "STATE_OUT" data_type: TYPE_FP32 dims: [ 1 ] }`
	files := make(map[string]string)
	for name, config := range map[string]string{
		"direct":  `max_batch_size: 4 instance_group { count: 2 kind: KIND_CPU } sequence_batching { direct { } max_sequence_idle_microseconds: 600000000 `,
		"oldest":  `max_batch_size: 4 instance_group { count: 2 kind: KIND_CPU } sequence_batching { oldest { max_candidate_sequences: 4 } max_sequence_idle_microseconds: 600000000 `,
		"brief":   `max_batch_size: 1 instance_group { count: 1 kind: KIND_CPU } sequence_batching { max_sequence_idle_microseconds: 200000 `,
		"patient": `max_batch_size: 1 instance_group { count: 1 kind: KIND_CPU } sequence_batching { max_sequence_idle_microseconds: 600000000 `,
	} {
		files[name+"/1/model.onnx"] = string(onnxmodel.Accumulator(tensor.FP32, "b", 1).Bytes())
		files[name+"/config.pbtxt"] = `backend: "onnxruntime" ` + config + state + ` }`
	}
	s := start(t, repository(t, files))
	python(t, []string{"HTTP_URL=" + s.HTTP, "GRPC_URL=" + s.GRPC}, "test/e2e/clients/test_sequences.py", "-v")
}
