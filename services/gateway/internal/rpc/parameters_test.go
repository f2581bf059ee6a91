package rpc

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/infer"
)

func TestSetParameters(t *testing.T) {
	tests := map[string]struct {
		list []infer.Parameter
		want infer.Request
	}{
		"the last of several counts": {
			[]infer.Parameter{{Key: "a", Value: true}, {Key: "b", Value: "x"}, {Key: "a", Value: int64(2)}},
			infer.Request{Parameters: []infer.Parameter{{Key: "a", Value: int64(2)}, {Key: "b", Value: "x"}}},
		},
		"a sequence by number": {
			[]infer.Parameter{{Key: "sequence_id", Value: int64(7)}, {Key: "sequence_end", Value: true}},
			infer.Request{Sequence: infer.Sequence{ID: 7, End: true}},
		},
		"a sequence by number, after one by name": {
			[]infer.Parameter{{Key: "sequence_id", Value: "x"}, {Key: "sequence_id", Value: int64(-1)}},
			infer.Request{Sequence: infer.Sequence{ID: math.MaxUint64}},
		},
		"a sequence by name, after one by number": {
			[]infer.Parameter{{Key: "sequence_id", Value: int64(7)}, {Key: "sequence_id", Value: "x"}},
			infer.Request{Sequence: infer.Sequence{Key: "x"}},
		},
		"priority": {
			[]infer.Parameter{{Key: "priority", Value: int64(4)}}, infer.Request{Priority: 4},
		},
		"timeout": {
			[]infer.Parameter{{Key: "timeout", Value: int64(1500)}}, infer.Request{Timeout: 1500 * time.Microsecond},
		},
		"a timeout beyond all bounds can be added to the present": {
			[]infer.Parameter{{Key: "timeout", Value: int64(math.MaxInt64)}},
			infer.Request{Timeout: time.Duration(maxTimeout) * time.Microsecond},
		},
		"a negative timeout is none": {
			[]infer.Parameter{{Key: "timeout", Value: int64(5)}, {Key: "timeout", Value: int64(-1)}}, infer.Request{},
		},
		"HTTP's parameters are the model's": {
			[]infer.Parameter{{Key: "binary_data_output", Value: true}},
			infer.Request{Parameters: []infer.Parameter{{Key: "binary_data_output", Value: true}}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var got infer.Request
			if err := setParameters(tt.list, &got, new(bool)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
