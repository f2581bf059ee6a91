package modelconfig

import (
	"math"
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/tensor"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// SequenceBatching configures the batcher of sequences.
type SequenceBatching struct {
	// Oldest says that batches take the requests that came first, of Slots
	// sequences. Otherwise the strategy is direct: each sequence has its own row
	// in every batch of its instance.
	Oldest bool
	// Slots is how many sequences an instance has at a time; at least 1.
	Slots int
	// MaxIdleMicros is how long a sequence may have no request and keep its slot.
	MaxIdleMicros uint64
	// MaxQueueDelayMicros is how long a request may wait for those of other
	// sequences.
	MaxQueueDelayMicros uint64
	// MinSlotUtilization is the share of slots with a request from which on a
	// direct batch does not wait.
	MinSlotUtilization float32
	// PreferredSizes are the early-send points of oldest, ascending.
	PreferredSizes   []int64
	PreserveOrdering bool
	// Iterative lets the backend ask for a request to run again.
	Iterative bool
	Controls  []SequenceControl
	States    []SequenceState
}

// Idle is MaxIdleMicros; values beyond the largest duration are that.
func (s *SequenceBatching) Idle() time.Duration {
	return time.Duration(min(s.MaxIdleMicros, math.MaxInt64/uint64(time.Microsecond))) * time.Microsecond //nolint:gosec // not beyond
}

// ControlKind is the meaning of a control tensor.
type ControlKind uint8

// The kinds of controls.
const (
	ControlStart ControlKind = iota
	ControlReady
	ControlEnd
	ControlCorrelationID
)

// SequenceControl is one thing that an input of the model tells it of each
// request's place in its sequence.
type SequenceControl struct {
	Kind  ControlKind
	Input string
	// Datatype is INT32, FP32 or BOOL, or that of the correlation ID.
	Datatype tensor.Datatype
	// False and True are the values of a control that is not the correlation ID.
	False, True float64
}

// SequenceState is a state that the server keeps for each sequence: an output of
// one execution that is the input of the next.
type SequenceState struct {
	Input, Output string
	Datatype      tensor.Datatype
	// Dims are the dimensions without the batch dimension; -1 is any size.
	Dims tensor.Shape
	// Initial is the initial state of a sequence; with nil the server uses zeros.
	Initial *InitialState
}

// InitialState is the state that a sequence starts with.
type InitialState struct {
	Dims tensor.Shape
	// File is below the model's directory initial_state; empty for zeros.
	File string
}

// ForBackend returns the configuration as the backend sees it: control inputs and states of
// sequences are among its inputs and outputs. Clients see c.
func (c *Config) ForBackend() *Config {
	if c.Sequences == nil {
		return c
	}
	full := *c
	full.Inputs, full.Outputs = slices.Clone(c.Inputs), slices.Clone(c.Outputs)
	for i := range c.Sequences.Controls {
		control := &c.Sequences.Controls[i]
		full.Inputs = append(full.Inputs, IO{Name: control.Input, Datatype: control.Datatype, Dims: tensor.Shape{1}})
	}
	for i := range c.Sequences.States {
		s := &c.Sequences.States[i]
		full.Inputs = append(full.Inputs, IO{Name: s.Input, Datatype: s.Datatype, Dims: s.Dims})
		if c.Output(s.Output) == nil {
			full.Outputs = append(full.Outputs, IO{Name: s.Output, Datatype: s.Datatype, Dims: s.Dims})
		}
	}
	return &full
}

// Control returns the control that an input is for, or nil.
func (s *SequenceBatching) Control(input string) *SequenceControl {
	if s == nil {
		return nil
	}
	for i := range s.Controls {
		if s.Controls[i].Input == input {
			return &s.Controls[i]
		}
	}
	return nil
}

// sequences converts the section of sequences; nil if there is none.
func sequences(c *inference.ModelConfig) *SequenceBatching {
	s := c.GetSequenceBatching()
	if s == nil {
		return nil
	}
	v := &SequenceBatching{
		Slots:               int(max(c.GetMaxBatchSize(), 1)),
		MaxIdleMicros:       s.GetMaxSequenceIdleMicroseconds(),
		MaxQueueDelayMicros: s.GetDirect().GetMaxQueueDelayMicroseconds(),
		MinSlotUtilization:  s.GetDirect().GetMinimumSlotUtilization(),
		Iterative:           s.GetIterativeSequence(),
	}
	if o := s.GetOldest(); o != nil {
		v.Oldest, v.MaxQueueDelayMicros, v.PreserveOrdering = true, o.GetMaxQueueDelayMicroseconds(), o.GetPreserveOrdering()
		if n := o.GetMaxCandidateSequences(); n > 0 {
			v.Slots = int(n)
		}
		v.PreferredSizes = ascending(o.GetPreferredBatchSize())
	}
	for _, in := range s.GetControlInput() {
		for _, control := range in.GetControl() {
			v.Controls = append(v.Controls, controlView(in.GetName(), control))
		}
	}
	for _, state := range s.GetState() {
		v.States = append(v.States, stateView(state))
	}
	return v
}

func controlView(input string, c *inference.ModelSequenceBatching_Control) SequenceControl {
	v := SequenceControl{Kind: ControlKind(c.GetKind()), Input: input}
	switch {
	case isCorrelation(c):
		v.Kind, v.Datatype = ControlCorrelationID, datatype(c.GetDataType())
	case len(c.GetInt32FalseTrue()) > 0:
		v.Datatype, v.False, v.True = tensor.Int32, float64(c.GetInt32FalseTrue()[0]), float64(c.GetInt32FalseTrue()[1])
	case len(c.GetFp32FalseTrue()) > 0:
		v.Datatype, v.False, v.True = tensor.FP32, float64(c.GetFp32FalseTrue()[0]), float64(c.GetFp32FalseTrue()[1])
	default:
		v.Datatype, v.False, v.True = tensor.Bool, truth(c.GetBoolFalseTrue()[0]), truth(c.GetBoolFalseTrue()[1])
	}
	return v
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func stateView(s *inference.ModelSequenceBatching_State) SequenceState {
	v := SequenceState{
		Input: s.GetInputName(), Output: s.GetOutputName(), Datatype: datatype(s.GetDataType()), Dims: s.GetDims(),
	}
	for _, initial := range s.GetInitialState() {
		v.Initial = &InitialState{Dims: initial.GetDims(), File: initial.GetDataFile()}
	}
	return v
}

// ascending converts preferred batch sizes.
func ascending(sizes []int32) (list []int64) {
	for _, size := range sizes {
		list = append(list, int64(size))
	}
	slices.Sort(list)
	return slices.Compact(list)
}
