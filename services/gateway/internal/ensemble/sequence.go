package ensemble

import (
	"github.com/nereid-serving/nereid/libs/infer"
)

// The parameters by which the response of a step sets the sequence of the steps that read
// it, and by which the response of an ensemble gives the sequence of its outputs.
const (
	sequenceID    = "sequence_id"
	sequenceStart = "sequence_start"
	sequenceEnd   = "sequence_end"
)

// outputSequence is the sequence of a step's outputs: that of the step, or another by the
// parameters of the response. As in Triton one parameter is enough to end the step's own
// start and end.
func outputSequence(step infer.Sequence, parameters []infer.Parameter) *infer.Sequence {
	set, overrides := infer.Sequence{ID: step.ID, Key: step.Key}, false
	for _, p := range parameters {
		switch p.Key {
		case sequenceID:
			switch id := p.Value.(type) {
			case int64:
				set.ID, set.Key, overrides = uint64(id), "", true //nolint:gosec // G115: the bits are the ID's
			case string:
				set.ID, set.Key, overrides = 0, id, true
			}
		case sequenceStart, sequenceEnd:
			on, ok := p.Value.(bool)
			set.Start = set.Start || on && p.Key == sequenceStart
			set.End = set.End || on && p.Key == sequenceEnd
			overrides = overrides || ok
		}
	}
	if !overrides {
		return &step
	}
	return &set
}

// override sets the sequence of what reads a value. Of several values that have another
// sequence than the request the first one counts.
func (r *Run) override(s *infer.Sequence, by *value) {
	if by.sequence != nil && *s == r.request.Sequence {
		*s = *by.sequence
	}
}

// sequenceParameters are the response parameters that give a sequence.
func sequenceParameters(s infer.Sequence) []infer.Parameter {
	id := infer.Parameter{Key: sequenceID, Value: int64(s.ID)} //nolint:gosec // G115: the bits are the ID's
	if s.Key != "" {
		id.Value = s.Key
	}
	return []infer.Parameter{id, {Key: sequenceStart, Value: s.Start}, {Key: sequenceEnd, Value: s.End}}
}
