package modelconfig

import (
	"fmt"
	"path/filepath"
	"slices"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

func (r *report) validateSequence(c *inference.ModelConfig) {
	s := c.GetSequenceBatching()
	if s == nil {
		return
	}
	const at = "sequence_batching"
	if u := s.GetDirect().GetMinimumSlotUtilization(); !(u >= 0 && u <= 1) { // NaN neither
		r.invalid(at+".direct.minimum_slot_utilization", "give a share, such as 0.5",
			"sequence batching minimum slot utilization must be in range [0.0, 1.0]")
	}
	for i, size := range s.GetOldest().GetPreferredBatchSize() {
		r.validatePreferred(index(at+".oldest.preferred_batch_size", i), "sequence batching preferred batch size", size, c.GetMaxBatchSize())
	}
	if s.GetOldest().GetMaxCandidateSequences() < 0 {
		r.invalid(at+".oldest.max_candidate_sequences", "use 0 for max_batch_size", "sequence batching max candidate sequences must be non-negative")
	}
	if n := s.GetOldest().GetMaxCandidateSequences(); n > maxCandidates {
		r.invalid(at+".oldest.max_candidate_sequences", "give what an instance can hold the states of",
			"sequence batching max candidate sequences is %d, more than the %d that are allowed", n, maxCandidates)
	}
	r.validateControls(s.GetControlInput())
	r.validateStates(s.GetState())
	r.validateSequenceNames(c)
}

// maxCandidates bounds the sequences of an instance, so that a slip of the
// keyboard does not take the memory of the machine.
const maxCandidates = 1 << 20

// validateSequenceNames makes sure that no tensor that the server gives or takes
// has two meanings.
func (r *report) validateSequenceNames(c *inference.ModelConfig) {
	s := c.GetSequenceBatching()
	inputs, outputs := make(map[string]bool), make(map[string]bool)
	for _, in := range c.GetInput() {
		inputs[in.GetName()] = true
	}
	give := func(at, what, name string) {
		if inputs[name] && name != "" {
			r.invalid(at, "name each tensor once; what the server gives the model is no input of requests", "%s '%s' is an input of another kind, too", what, name)
		}
		inputs[name] = true
	}
	controls := make(map[string]bool) // named twice is reported by its own rule
	for i, in := range s.GetControlInput() {
		if !controls[in.GetName()] {
			give(index("sequence_batching.control_input", i)+".name", "sequence batching control tensor", in.GetName())
		}
		controls[in.GetName()] = true
	}
	for i, state := range s.GetState() {
		at := index("sequence_batching.state", i)
		give(at+".input_name", "sequence batching state", state.GetInputName())
		if name := state.GetOutputName(); outputs[name] && name != "" {
			r.invalid(at+".output_name", "give each state an output of its own", "sequence batching state output '%s' is specified more than once", name)
		}
		outputs[state.GetOutputName()] = true
		for _, out := range c.GetOutput() {
			if out.GetName() == state.GetOutputName() && (out.GetDataType() != state.GetDataType() || !slices.Equal(out.GetDims(), state.GetDims()) || out.GetReshape() != nil) {
				r.invalid(at+".output_name", "declare both alike, and without reshape, or remove the output", "sequence batching state '%s' and the model's output '%s' differ in datatype or dims",
					state.GetInputName(), out.GetName())
			}
		}
	}
}

// validatePreferred checks one preferred batch size. what begins the message.
func (r *report) validatePreferred(at, what string, size, most int32) {
	if size <= 0 {
		r.invalid(at, "remove it, or give a size from 1 to max_batch_size", "%s must be positive", what)
	} else if size > most {
		r.invalid(at, fmt.Sprintf("max_batch_size is %d", most), "%s must be <= max batch size", what)
	}
}

func (r *report) validateControls(list []*inference.ModelSequenceBatching_ControlInput) {
	names := make(map[string]bool)
	kinds := make(map[inference.ModelSequenceBatching_Control_Kind]bool)
	for i, in := range list {
		at := index("sequence_batching.control_input", i)
		if in.GetName() == "" {
			r.invalid(at+".name", "name the model's input for the control", "sequence batching control tensor must have a name")
		} else if names[in.GetName()] {
			r.invalid(at+".name", "give each control a tensor of its own",
				"sequence batching control tensor '%s' is specified for multiple control kinds", in.GetName())
		}
		names[in.GetName()] = true
		for j, control := range in.GetControl() {
			at := index(at+".control", j)
			if j > 0 {
				r.invalid(at, "give each control a tensor of its own", "sequence batching control tensor '%s' is specified for multiple control kinds", in.GetName())
			}
			if kinds[control.GetKind()] {
				r.invalid(at+".kind", "keep one", "sequence batching specifies multiple %s tensors", control.GetKind())
			}
			kinds[control.GetKind()] = true
			r.validateControl(at, control)
		}
	}
}

func (r *report) validateControl(at string, c *inference.ModelSequenceBatching_Control) {
	lists := []struct {
		field string
		n     int
	}{
		{"int32_false_true", len(c.GetInt32FalseTrue())},
		{"fp32_false_true", len(c.GetFp32FalseTrue())},
		{"bool_false_true", len(c.GetBoolFalseTrue())},
	}
	given := 0
	for _, l := range lists {
		if l.n > 0 {
			given++
		}
		if l.n > 0 && l.n != 2 && !isCorrelation(c) {
			r.invalid(at+"."+l.field, "give the value for false and the value for true, such as [ 0, 1 ]",
				"sequence batching control '%s' must have exactly 2 entries", l.field)
		}
	}
	if isCorrelation(c) {
		r.validateCorrelation(at, c, given)
		return
	}
	if given != 1 {
		r.invalid(at, "give one of the three lists, such as int32_false_true: [ 0, 1 ]",
			"sequence batching control must specify exactly one of 'int32_false_true', 'fp32_false_true' and 'bool_false_true' for %s", c.GetKind())
	}
}

func isCorrelation(c *inference.ModelSequenceBatching_Control) bool {
	return c.GetKind() == inference.ModelSequenceBatching_Control_CONTROL_SEQUENCE_CORRID
}

func (r *report) validateCorrelation(at string, c *inference.ModelSequenceBatching_Control, lists int) {
	if lists > 0 {
		r.invalid(at, "remove the list; a correlation ID is given by data_type",
			"sequence batching control must not specify 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for %s", c.GetKind())
	}
	switch c.GetDataType() {
	case inference.DataType_TYPE_UINT64, inference.DataType_TYPE_INT64, inference.DataType_TYPE_UINT32,
		inference.DataType_TYPE_INT32, inference.DataType_TYPE_STRING:
	default:
		r.invalid(at+".data_type", "use TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 or TYPE_STRING",
			"unexpected data type %s for sequence batching control %s", c.GetDataType(), c.GetKind())
	}
}

func (r *report) validateStates(states []*inference.ModelSequenceBatching_State) {
	for i, s := range states {
		at := index("sequence_batching.state", i)
		if s.GetInputName() == "" {
			r.invalid(at+".input_name", "name the model's input for the state", "sequence batching state must specify 'input_name'")
		}
		if s.GetOutputName() == "" {
			r.invalid(at+".output_name", "name the model's output of the state", "sequence batching state must specify 'output_name'")
		}
		subject := fmt.Sprintf("sequence batching state '%s'", s.GetInputName())
		if !datatype(s.GetDataType()).Valid() {
			r.invalid(at+".data_type", "for example TYPE_FP32", "%s must specify 'data_type'", subject)
		}
		r.validateDims(at+".dims", subject, s.GetDims())
		if len(s.GetInitialState()) > 1 {
			r.invalid(at+".initial_state", "keep one", "%s must have at most one 'initial_state'", subject)
		}
		for j, initial := range s.GetInitialState() {
			r.validateInitialState(index(at+".initial_state", j), subject, s, initial)
		}
	}
}

func (r *report) validateInitialState(at, subject string, s *inference.ModelSequenceBatching_State, initial *inference.ModelSequenceBatching_InitialState) {
	if initial.GetName() == "" {
		r.invalid(at+".name", "give it any name", "initial state of %s must specify 'name'", subject)
	}
	if initial.GetDataType() != s.GetDataType() {
		r.invalid(at+".data_type", "use the state's", "initial state of %s has data type %s, the state %s", subject, initial.GetDataType(), s.GetDataType())
	}
	if slices.ContainsFunc(initial.GetDims(), func(d int64) bool { return d < 1 }) {
		r.invalid(at+".dims", "give each dimension a size; none may be -1 here", "initial state of %s has dimensions that are not positive", subject)
	} else if !admits(s.GetDims(), initial.GetDims()) {
		r.invalid(at+".dims", "give dims that the state's allow", "initial state of %s has dims %v, the state %v", subject, initial.GetDims(), s.GetDims())
	}
	if initial.GetStateData() == nil {
		r.invalid(at, "add zero_data: true or data_file: \"FILE\"", "initial state of %s must specify what it is filled with", subject)
	}
	if file := initial.GetDataFile(); file != "" && !filepath.IsLocal(file) {
		r.outside(at+".data_file", "data_file", file, "the model's directory initial_state")
	}
}
