// Package square is a backend whose decoupled models respond n times with n to a
// request of n, like Triton's square backend, with its tensors. It needs no files.
//
//	IN   INT32 [1]  n
//	OUT  INT32 [1]  n
//
// After the last response, a final response without outputs ends the request. Parameters
// of the configuration make it slow or fail:
//
//	CUSTOM_INFER_DELAY_NS   before each response, and before a failure
//	CUSTOM_OUTPUT_DELAY_NS  before each response, in addition
//	CUSTOM_EMPTY_COUNT      how many of the n, at the end, give no response
//	CUSTOM_FAIL_COUNT       how many before those fail: the first of them ends the request
package square

import (
	"context"
	"encoding/binary"
	"sync"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/builtin"
)

// Backend is the square backend. The zero value is ready for use.
type Backend struct{}

// Close does nothing.
func (*Backend) Close() error { return nil }

// Load checks the configuration. It reads no files.
func (*Backend) Load(_ context.Context, v backend.Version) (backend.Model, error) {
	c := v.Config
	if !c.Decoupled {
		return nil, builtin.LoadFailed(c, "the square backend gives any number of responses to a request: add  model_transaction_policy { decoupled: true }")
	}
	if err := check(c, "input", "IN", c.Inputs); err != nil {
		return nil, err
	}
	if err := check(c, "output", "OUT", c.Outputs); err != nil {
		return nil, err
	}
	var m model
	for key, to := range map[string]*time.Duration{"CUSTOM_INFER_DELAY_NS": &m.inferDelay, "CUSTOM_OUTPUT_DELAY_NS": &m.outputDelay} {
		var err error
		if *to, err = builtin.Duration(c, key, time.Nanosecond); err != nil {
			return nil, err
		}
	}
	for key, to := range map[string]*int64{"CUSTOM_FAIL_COUNT": &m.failing, "CUSTOM_EMPTY_COUNT": &m.empty} {
		n, err := builtin.Count(c, key)
		if err != nil {
			return nil, err
		}
		*to = int64(n)
	}
	return &m, nil
}

// check holds the inputs or the outputs against the one tensor that there must be.
func check(c *modelconfig.Config, what, name string, have []modelconfig.IO) error {
	switch {
	case len(have) != 1:
		return builtin.LoadFailed(c, "expected 1 %s, got %d: the square backend has the input IN and the output OUT", what, len(have))
	case have[0].Name != name:
		return builtin.LoadFailed(c, "expected first %s tensor name to be %s, got %s", what, name, have[0].Name)
	case !have[0].Dims.Equal(tensor.Shape{1}):
		return builtin.LoadFailed(c, "expected %s shape to be [1], got %v", name, have[0].Dims)
	case have[0].Datatype != tensor.Int32:
		return builtin.LoadFailed(c, "expected %s datatype to be INT32, got %s", name, have[0].Datatype.ConfigName())
	}
	return nil
}

type model struct {
	inferDelay, outputDelay time.Duration
	failing, empty          int64
}

// NewInstance makes an instance.
func (m *model) NewInstance(context.Context, backend.InstanceSpec) (backend.Instance, error) {
	return instance{m}, nil
}

// Close does nothing.
func (*model) Close() error { return nil }

type instance struct{ model *model }

// Credits is 1: requests overlap all the same.
func (instance) Credits() int { return 1 }

// Close does nothing.
func (instance) Close() error { return nil }

// Execute frees the instance at once. Each request has a goroutine that gives its
// responses and ends with the last of them, or when the request is canceled; one more
// ends the batch.
func (in instance) Execute(b backend.Batch) {
	canceled := builtin.Canceled(b)
	b.InputDone()
	b.Executed()
	var responding sync.WaitGroup
	for i, r := range b.Requests() {
		responding.Go(func() { b.Respond(i, &infer.Response{Final: true, Err: in.model.respond(b, i, r, canceled)}) })
	}
	b.InferDone()
	b.Free()
	go func() {
		responding.Wait()
		b.Done()
	}()
}

// respond gives a request its responses but the last, as its client reads them.
func (m *model) respond(b backend.Batch, i int, r *infer.Request, canceled <-chan struct{}) error {
	in, data, err := builtin.Input(r, "IN")
	if err != nil {
		return err
	}
	if r.BatchSize > 1 {
		return errs.New(errs.ShapeMismatch, "unexpected shape for IN input: %v is more than one number", in.Shape)
	}
	n := int64(int32(binary.LittleEndian.Uint32(data))) //nolint:gosec // the number that it is
	if n < 0 {
		return errs.New(errs.TensorDataInvalid, "IN is %d: it is the number of responses", n)
	}
	shape := append(tensor.Shape{}, in.Shape...)
	for k := range max(n-m.empty, 0) {
		builtin.Pause(m.inferDelay, canceled)
		if k >= n-m.empty-m.failing {
			return errs.New(errs.ExecutionFailed, "simulated failure")
		}
		builtin.Pause(m.outputDelay, canceled)
		<-b.Room(i)
		if b.Canceled(i) {
			return errs.New(errs.Canceled, "")
		}
		response := &infer.Response{}
		if r.Wants("OUT") {
			out := binary.LittleEndian.AppendUint32(nil, uint32(n)) //nolint:gosec // the bits that came
			response.Outputs = []infer.Tensor{{Name: "OUT", Datatype: tensor.Int32, Shape: shape, Data: tensor.InHeap(out)}}
		}
		b.Respond(i, response)
	}
	return nil
}
