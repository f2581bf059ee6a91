package modelconfig

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/nereid-serving/nereid/libs/tensor"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

func TestSequenceBatchingIsConverted(t *testing.T) {
	for text, want := range map[string]*SequenceBatching{
		`max_batch_size: 4 dynamic_batching {}`: nil,
		`sequence_batching {}`:                  {Slots: 1, MaxIdleMicros: 1_000_000},
		`max_batch_size: 4 sequence_batching {
			max_sequence_idle_microseconds: 7 iterative_sequence: true
			direct { max_queue_delay_microseconds: 5 minimum_slot_utilization: 0.5 }
			control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 3, 4 ] } }
			control_input { name: "END" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 0.5 ] } }
			control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [ true, false ] } }
			control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } }
			state { input_name: "a" output_name: "b" data_type: TYPE_FP32 dims: [ -1 ] use_same_buffer_for_input_output: true
				initial_state { name: "zeros" data_type: TYPE_FP32 dims: [ 2 ] data_file: "first" } }
			state { input_name: "c" output_name: "d" data_type: TYPE_INT8 dims: [ 1 ] }
		}`: {
			Slots: 4, MaxIdleMicros: 7, Iterative: true, MaxQueueDelayMicros: 5, MinSlotUtilization: 0.5,
			Controls: []SequenceControl{
				{Kind: ControlStart, Input: "START", Datatype: tensor.Int32, False: 3, True: 4},
				{Kind: ControlEnd, Input: "END", Datatype: tensor.FP32, True: 0.5},
				{Kind: ControlReady, Input: "READY", Datatype: tensor.Bool, False: 1},
				{Kind: ControlCorrelationID, Input: "ID", Datatype: tensor.Bytes},
			},
			States: []SequenceState{
				{Input: "a", Output: "b", Datatype: tensor.FP32, Dims: tensor.Shape{-1}, Initial: &InitialState{Dims: tensor.Shape{2}, File: "first"}},
				{Input: "c", Output: "d", Datatype: tensor.Int8, Dims: tensor.Shape{1}},
			},
		},
		`max_batch_size: 4 sequence_batching { oldest { max_queue_delay_microseconds: 5 preserve_ordering: true preferred_batch_size: [ 4, 2 ] } }`: {
			Oldest: true, Slots: 4, MaxIdleMicros: 1_000_000, MaxQueueDelayMicros: 5, PreserveOrdering: true, PreferredSizes: []int64{2, 4},
		},
		`max_batch_size: 4 sequence_batching { oldest { max_candidate_sequences: 9 } }`: {
			Oldest: true, Slots: 9, MaxIdleMicros: 1_000_000, PreferredSizes: []int64{4},
		},
	} {
		c := new(inference.ModelConfig)
		if err := prototext.Unmarshal([]byte(text), c); err != nil {
			t.Fatal(err)
		}
		normalizeBatching(c)
		if d := cmp.Diff(want, sequences(c)); d != "" {
			t.Errorf("%s: %s", text, d)
		}
	}
}
