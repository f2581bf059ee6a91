package sequence

import (
	"encoding/binary"
	"fmt"
	"math"
	"path/filepath"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/datafile"
)

// Model is what the instances of a version share. It is immutable.
type Model struct {
	ref      infer.ModelRef
	config   *modelconfig.Config
	controls []control
	states   []state
	deps     Deps
}

// Deps are the dependencies of a model.
type Deps struct {
	// Pool provides the memory of states.
	Pool *tensor.Pool
	// Held is notified by how many bytes the memory of states grows or, if negative, shrinks. Any goroutine may call
	// it.
	Held  func(bytes int64)
	Clock mono.Clock
}

// control is a control input and its values.
type control struct {
	kind    modelconfig.ControlKind
	input   infer.Tensor // without its bytes
	no, yes tensor.Ref   // except for the correlation ID
}

// state is a state and its initial value.
type state struct {
	config  *modelconfig.SequenceState
	initial infer.Tensor
}

// Prepare creates what the instances of a version share, and reads the files of initial states from the model's
// directory initial_state. It returns nil for a model that does not batch sequences. Errors have the reason
// load_failed.
func Prepare(v backend.Version, d Deps) (*Model, error) {
	c := v.Config.Sequences
	if c == nil {
		return nil, nil //nolint:nilnil // said above
	}
	m := &Model{ref: v.Ref, config: v.Config, deps: d}
	for i := range c.Controls {
		m.controls = append(m.controls, newControl(v.Config, &c.Controls[i]))
	}
	left := int64(maxInitialBytes)
	for i := range c.States {
		s, err := newState(v, &c.States[i], left)
		if err != nil {
			return nil, errs.Wrap(errs.LoadFailed, err, "load model '%s': initial state of '%s': %v", v.Ref.Name, c.States[i].Input, err).WithModel(v.Ref.Name)
		}
		left -= s.initial.Data.Length
		m.states = append(m.states, s)
	}
	return m, nil
}

func newControl(c *modelconfig.Config, s *modelconfig.SequenceControl) control {
	v := control{kind: s.Kind, input: infer.Tensor{Name: s.Input, Datatype: s.Datatype, Shape: oneRow(c, tensor.Shape{1})}}
	if s.Kind != modelconfig.ControlCorrelationID {
		v.no, v.yes = tensor.InHeap(number(s.Datatype, s.False)), tensor.InHeap(number(s.Datatype, s.True))
	}
	return v
}

// oneRow returns the shape of one row with the given dimensions.
func oneRow(c *modelconfig.Config, dims tensor.Shape) tensor.Shape {
	if c.Batches() {
		return dims.Prepend(1)
	}
	return dims
}

// number encodes an element of a control.
func number(d tensor.Datatype, v float64) []byte {
	switch d {
	case tensor.Int32:
		return binary.NativeEndian.AppendUint32(nil, uint32(int32(v)))
	case tensor.FP32:
		return binary.NativeEndian.AppendUint32(nil, math.Float32bits(float32(v)))
	}
	return []byte{byte(v)}
}

// correlation encodes the correlation ID of a sequence; 32-bit integers get its low bits.
func correlation(d tensor.Datatype, s *infer.Sequence, empty bool) []byte {
	switch {
	case d == tensor.Bytes && empty:
		return tensor.AppendBytes(nil, "")
	case d == tensor.Bytes:
		return tensor.AppendBytes(nil, s.CorrelationID())
	case d.Size() == 4:
		return binary.NativeEndian.AppendUint32(nil, uint32(s.ID)) //nolint:gosec // said above
	}
	return binary.NativeEndian.AppendUint64(nil, s.ID)
}

// of returns the control of a request in its slot; ready is false for an empty one.
func (c *control) of(s *infer.Sequence, ready bool) infer.Tensor {
	t, yes := c.input, false
	switch c.kind {
	case modelconfig.ControlCorrelationID:
		t.Data = tensor.InHeap(correlation(t.Datatype, s, !ready))
		return t
	case modelconfig.ControlStart:
		yes = s.Start
	case modelconfig.ControlEnd:
		yes = s.End
	case modelconfig.ControlReady:
		yes = ready
	}
	if t.Data = c.no; yes {
		t.Data = c.yes
	}
	return t
}

// maxInitialBytes limits the initial states of a model.
const maxInitialBytes = 4 << 30

func newState(v backend.Version, c *modelconfig.SequenceState, left int64) (s state, err error) {
	dims := make(tensor.Shape, len(c.Dims))
	for i, d := range c.Dims {
		dims[i] = max(d, 1) // as Triton has those of any size
	}
	file := ""
	if c.Initial != nil {
		dims, file = c.Initial.Dims, c.Initial.File
	}
	size, err := datafile.Size(c.Datatype, dims)
	if err != nil {
		return s, err
	}
	if size > left {
		return s, fmt.Errorf("%d bytes are too much for a model's initial states, which may have %d: give it smaller dims", size, int64(maxInitialBytes))
	}
	var data []byte
	if file == "" {
		data = make([]byte, size)
	} else if data, err = (datafile.File{
		What: "initial_state", Dir: filepath.Join(v.ModelDir, "initial_state"), Name: file, Datatype: c.Datatype, Dims: dims, Limit: left,
	}).Read(); err != nil {
		return s, err
	}
	return state{config: c, initial: infer.Tensor{Name: c.Input, Datatype: c.Datatype, Shape: oneRow(v.Config, dims), Data: tensor.InHeap(data)}}, nil
}

// stateOf returns the index of the state that an output is, or -1.
func (m *Model) stateOf(output string) int {
	for i := range m.states {
		if m.states[i].config.Output == output {
			return i
		}
	}
	return -1
}
