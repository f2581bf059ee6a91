// Package accumulator has two backends whose models sum up the inputs of a sequence,
// like Triton's sequence and dyna_sequence. They need no files.
//
//	INPUT   INT32, one dimension  the numbers of a step
//	OUTPUT  INT32, as INPUT       the sum of all since START, in each element
//
// The backend sequence has the controls START and READY and keeps a sum for each
// slot of a batch, so it supports only the strategy direct. The backend
// dyna_sequence also has END and CORRID and keeps a sum for each correlation ID,
// to which END adds the ID. The parameter execute_delay_ms delays each batch.
package accumulator

import (
	"context"
	"encoding/binary"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/builtin"
)

// Backend is one of the two backends.
type Backend struct {
	name    string
	dynamic bool // it is dyna_sequence
}

// Close does nothing.
func (*Backend) Close() error { return nil }

// Load checks the configuration. It reads no files.
func (b *Backend) Load(_ context.Context, v backend.Version) (backend.Model, error) {
	if err := b.check(v.Config); err != nil {
		return nil, err
	}
	delay, err := builtin.Duration(v.Config, "execute_delay_ms", time.Millisecond)
	if err != nil {
		return nil, err
	}
	return &model{dynamic: b.dynamic, delay: delay, sequences: v.Config.Sequences}, nil
}

func (b *Backend) check(c *modelconfig.Config) error {
	if err := b.checkControls(c); err != nil {
		return err
	}
	inputs := slices.DeleteFunc(slices.Clone(c.Inputs), func(in modelconfig.IO) bool { return c.Sequences.Control(in.Name) != nil })
	for _, t := range []struct {
		what, name string
		have       []modelconfig.IO
	}{{"input", "INPUT", inputs}, {"output", "OUTPUT", c.Outputs}} {
		switch {
		case len(t.have) != 1 || len(t.have[0].Dims) != 1:
			return builtin.LoadFailed(c, "model must have one %s '%s' with vector shape, any length", t.what, t.name)
		case t.have[0].Datatype != tensor.Int32:
			return builtin.LoadFailed(c, "model %s must have TYPE_INT32 data-type", t.what)
		case t.have[0].Name != t.name:
			return builtin.LoadFailed(c, "model %s must be named '%s'", t.what, t.name)
		}
	}
	if !c.Outputs[0].Dims.Equal(inputs[0].Dims) {
		return builtin.LoadFailed(c, "model must have output 'OUTPUT' with shape matching 'INPUT'")
	}
	return nil
}

func (b *Backend) checkControls(c *modelconfig.Config) error {
	want := map[string]modelconfig.ControlKind{"START": modelconfig.ControlStart, "READY": modelconfig.ControlReady}
	fix := "'START' and 'READY' must be configured as the control inputs"
	if b.dynamic {
		want["END"], want["CORRID"] = modelconfig.ControlEnd, modelconfig.ControlCorrelationID
		fix = "'START', 'END', 'READY' and 'CORRID' must be configured as the control inputs"
	}
	s := c.Sequences
	if s == nil || len(s.Controls) != len(want) {
		return builtin.LoadFailed(c, "%s of sequence_batching", fix)
	}
	for name, kind := range want {
		if control := s.Control(name); control == nil || control.Kind != kind {
			return builtin.LoadFailed(c, "%s of sequence_batching", fix)
		}
	}
	if !b.dynamic && s.Oldest {
		return builtin.LoadFailed(c, "the backend sequence keeps its sums by batch slot, which the strategy oldest does not give: use direct, or the backend dyna_sequence")
	}
	if corrid := s.Control("CORRID"); b.dynamic && corrid.Datatype != tensor.Uint64 && corrid.Datatype != tensor.Bytes {
		return builtin.LoadFailed(c, "model CORRID control input must have TYPE_UINT64 or TYPE_STRING data-type")
	}
	return nil
}

type model struct {
	dynamic   bool
	delay     time.Duration
	sequences *modelconfig.SequenceBatching
}

// NewInstance makes an instance.
func (m *model) NewInstance(context.Context, backend.InstanceSpec) (backend.Instance, error) {
	return &instance{model: m, sums: make(map[string]sum)}, nil
}

// Close does nothing.
func (*model) Close() error { return nil }

// instance keeps the sums of its sequences, by slot or correlation ID.
type instance struct {
	model *model
	sums  map[string]sum // owned by the caller of Execute
}

// sum is that of a sequence.
type sum struct {
	value int32
	last  time.Time // when it had a request
}

// Credits is 1.
func (*instance) Credits() int { return 1 }

// Close does nothing.
func (*instance) Close() error { return nil }

// Execute waits for as long as the model takes, and adds up. What nobody waits for
// is not added.
func (in *instance) Execute(b backend.Batch) {
	b.InputDone()
	builtin.Pause(in.model.delay, builtin.Canceled(b))
	b.Executed()
	b.InferDone()
	for i, r := range b.Requests() {
		response := &infer.Response{Final: true}
		if b.Canceled(i) {
			response.Err = errs.New(errs.Canceled, "")
		} else {
			response.Outputs, response.Err = in.step(i, r)
		}
		b.Respond(i, response)
	}
	b.Done()
}

// step adds a request to the sum of its sequence.
func (in *instance) step(row int, r *infer.Request) ([]infer.Tensor, error) {
	if r.BatchSize > 1 {
		return nil, errs.New(errs.BatchSizeExceeded, "unable to execute more than one timestep at a time")
	}
	key, number, err := in.sequence(row, r)
	if err != nil {
		return nil, err
	}
	input, data, err := builtin.Input(r, "INPUT")
	if err != nil {
		return nil, err
	}
	ready, start, end := flag(r, "READY"), flag(r, "START"), flag(r, "END")
	if !ready {
		return nil, nil
	}
	s := in.sums[key]
	if start {
		in.sweep()
		s.value = 0
	}
	for at := 0; at < len(data); at += 4 {
		s.value += int32(binary.LittleEndian.Uint32(data[at:])) //nolint:gosec // the number that it is
	}
	if end {
		s.value += int32(number) //nolint:gosec // its low bits, as in Triton
		delete(in.sums, key)
	} else {
		s.last = time.Now()
		in.sums[key] = s
	}
	if !r.Wants("OUTPUT") {
		return nil, nil
	}
	out := make([]byte, 0, len(data))
	for range len(data) / 4 {
		out = binary.LittleEndian.AppendUint32(out, uint32(s.value)) //nolint:gosec // its bits
	}
	return []infer.Tensor{{Name: "OUTPUT", Datatype: tensor.Int32, Shape: input.Shape, Data: tensor.InHeap(out)}}, nil
}

// sequence says where the sum of a request is, and which number END adds to it.
func (in *instance) sequence(row int, r *infer.Request) (key string, number uint64, err error) {
	if !in.model.dynamic {
		return strconv.Itoa(row), 0, nil
	}
	id, data, err := builtin.Input(r, "CORRID")
	if err != nil {
		return "", 0, err
	}
	if id.Datatype == tensor.Uint64 {
		return string(data), binary.LittleEndian.Uint64(data), nil
	}
	element, _, err := tensor.CutBytes(data)
	if err != nil {
		return "", 0, err
	}
	number, err = strconv.ParseUint(string(element), 10, 64)
	if err != nil {
		return "", 0, errs.New(errs.TensorDataInvalid, "the correlation ID is %q: the backend dyna_sequence adds it to the sum, give a number", element)
	}
	return string(element), number, nil
}

// flag reports whether a control is not zero.
func flag(r *infer.Request, control string) bool {
	_, data, err := builtin.Input(r, control)
	return err == nil && slices.ContainsFunc(data, func(b byte) bool { return b != 0 })
}

// lingers is for how long a sum is kept beyond the idle time of its sequence, which
// a scheduler that is gone for a while prolongs.
const lingers = time.Minute

// sweep drops the sums of sequences that have ended without END.
func (in *instance) sweep() {
	if len(in.sums) < in.model.sequences.Slots {
		return
	}
	ended := time.Now().Add(-lingers - in.model.sequences.Idle())
	maps.DeleteFunc(in.sums, func(_ string, s sum) bool { return s.last.Before(ended) })
}
