package ensemble

import (
	"github.com/nereid-serving/nereid/libs/infer"
)

// The parameters by which a step's response sets the sequence of the steps that read it, and an ensemble's
// response reports the sequence of its outputs.
const (
	sequenceID    = "sequence_id"
	sequenceStart = "sequence_start"
	sequenceEnd   = "sequence_end"
)

// outputSequence returns the sequence of a step's outputs: the step's own, or the one that the response's
// parameters set. As in Triton, a single parameter is enough to drop the step's own start and end.
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

// override sets the sequence of a value's reader. If several values have a sequence other than the request's,
// the first one wins.
func (r *Run) override(s *infer.Sequence, by *value) {
	if by.sequence != nil && *s == r.request.Sequence {
		*s = *by.sequence
	}
}

// sequenceParameters returns the response parameters for a sequence.
func sequenceParameters(s infer.Sequence) []infer.Parameter {
	id := infer.Parameter{Key: sequenceID, Value: int64(s.ID)} //nolint:gosec // G115: the bits are the ID's
	if s.Key != "" {
		id.Value = s.Key
	}
	return []infer.Parameter{id, {Key: sequenceStart, Value: s.Start}, {Key: sequenceEnd, Value: s.End}}
}
