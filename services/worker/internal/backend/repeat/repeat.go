// Package repeat is a backend whose models give one response for each element of an
// input, like Triton's repeat backend, with its tensors. It demonstrates and tests
// decoupled models; it needs no files.
//
//	IN     INT32, one dimension   the values
//	DELAY  UINT32, as IN          milliseconds before each response
//	WAIT   UINT32 [1]             milliseconds until the instance accepts the next request
//	OUT    INT32 [1]              the value
//	IDX    UINT32 [1]             its index
//
// After the last response, a final response without outputs ends the request. An empty
// IN gives only that one.
package repeat

import (
	"context"
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/builtin"
)

// elementBytes is the size of an element of each tensor.
const elementBytes = 4

// Backend is the repeat backend. The zero value is ready for use.
type Backend struct{}

// Close does nothing.
func (*Backend) Close() error { return nil }

// Load checks the configuration. It reads no files.
func (*Backend) Load(_ context.Context, v backend.Version) (backend.Model, error) {
	c := v.Config
	switch {
	case !c.Decoupled:
		return nil, builtin.LoadFailed(c, "the repeat backend gives any number of responses to a request: add  model_transaction_policy { decoupled: true }")
	case c.MaxBatchSize != 0:
		return nil, builtin.LoadFailed(c, "repeat backend only supports models with max_batch_size == 0, not %d: leave it out", c.MaxBatchSize)
	}
	one := tensor.Shape{1}
	any1 := func(s tensor.Shape) bool { return len(s) == 1 }
	single := one.Equal
	if err := check(c, "input", c.Inputs, []want{{"IN", tensor.Int32, any1}, {"DELAY", tensor.Uint32, any1}, {"WAIT", tensor.Uint32, single}}); err != nil {
		return nil, err
	}
	if err := check(c, "output", c.Outputs, []want{{"OUT", tensor.Int32, single}, {"IDX", tensor.Uint32, single}}); err != nil {
		return nil, err
	}
	return model{}, nil
}

// want is a tensor that a configuration must have.
type want struct {
	name     string
	datatype tensor.Datatype
	fits     func(tensor.Shape) bool
}

func check(c *modelconfig.Config, what string, have []modelconfig.IO, wanted []want) error {
	if len(have) != len(wanted) {
		return builtin.LoadFailed(c, "expected %d %ss, got %d: the repeat backend has the inputs IN, DELAY and WAIT and the outputs OUT and IDX", len(wanted), what, len(have))
	}
	for _, w := range wanted {
		i := slices.IndexFunc(have, func(io modelconfig.IO) bool { return io.Name == w.name })
		switch {
		case i < 0:
			return builtin.LoadFailed(c, "there is no %s %s, which the repeat backend needs", what, w.name)
		case have[i].Datatype != w.datatype:
			return builtin.LoadFailed(c, "expected %s datatype to be %v, got %v", w.name, w.datatype, have[i].Datatype)
		case !w.fits(have[i].Dims):
			return builtin.LoadFailed(c, "expected %s shape to be [1], or [-1] for IN and DELAY, got %v", w.name, have[i].Dims)
		}
	}
	return nil
}

type model struct{}

// NewInstance makes an instance.
func (model) NewInstance(context.Context, backend.InstanceSpec) (backend.Instance, error) {
	return instance{}, nil
}

// Close does nothing.
func (model) Close() error { return nil }

type instance struct{}

// Credits is 1: requests overlap when their WAIT is over.
func (instance) Credits() int { return 1 }

// Close does nothing.
func (instance) Close() error { return nil }

// Execute returns at once. Each request has a goroutine that gives its responses
// and ends with the last of them, or when the request is canceled; one more frees the
// instance after WAIT, and ends the batch.
func (instance) Execute(b backend.Batch) {
	canceled := builtin.Canceled(b)
	b.InputDone()
	b.Executed()
	var sending sync.WaitGroup
	var wait time.Duration
	for i, request := range b.Requests() {
		r, err := read(request)
		if err != nil {
			b.Respond(i, &infer.Response{Err: err})
			continue
		}
		wait = max(wait, r.wait)
		sending.Go(func() { r.send(b, i, canceled) })
	}
	go func() {
		builtin.Pause(wait, canceled)
		b.InferDone()
		b.Free()
		sending.Wait()
		b.Done()
	}()
}

// run is what a request asks for. The bytes are the request's.
type run struct {
	in, delay []byte
	wait      time.Duration
	out, idx  bool // the outputs that are asked for
}

func read(r *infer.Request) (run, error) {
	x := run{out: r.Wants("OUT"), idx: r.Wants("IDX")}
	var wait []byte
	for name, to := range map[string]*[]byte{"IN": &x.in, "DELAY": &x.delay, "WAIT": &wait} {
		var err error
		if _, *to, err = builtin.Input(r, name); err != nil {
			return run{}, err
		}
	}
	if len(x.in) != len(x.delay) { // each has one dimension
		return run{}, errs.New(errs.ShapeMismatch, "expected IN and DELAY shape to match, got [%d] and [%d]", len(x.in)/elementBytes, len(x.delay)/elementBytes)
	}
	x.wait = milliseconds(wait)
	return x, nil
}

func milliseconds(element []byte) time.Duration {
	return time.Duration(binary.LittleEndian.Uint32(element)) * time.Millisecond
}

// send gives a request its responses, as its client reads them.
func (x run) send(b backend.Batch, i int, canceled <-chan struct{}) {
	for n := 0; n < len(x.in); n += elementBytes {
		builtin.Pause(milliseconds(x.delay[n:]), canceled)
		<-b.Room(i)
		if b.Canceled(i) {
			b.Respond(i, &infer.Response{Err: errs.New(errs.Canceled, "")})
			return
		}
		b.Respond(i, &infer.Response{Outputs: x.outputs(n)})
	}
	b.Respond(i, &infer.Response{Final: true})
}

// outputs are those for the element at a byte of IN.
func (x run) outputs(at int) []infer.Tensor {
	data := make([]byte, 0, 2*elementBytes)
	data = append(data, x.in[at:at+elementBytes]...)
	data = binary.LittleEndian.AppendUint32(data, uint32(at/elementBytes))
	list := make([]infer.Tensor, 0, 2)
	if x.out {
		list = append(list, infer.Tensor{Name: "OUT", Datatype: tensor.Int32, Shape: tensor.Shape{1}, Data: tensor.InHeap(data[:elementBytes])})
	}
	if x.idx {
		list = append(list, infer.Tensor{Name: "IDX", Datatype: tensor.Uint32, Shape: tensor.Shape{1}, Data: tensor.InHeap(data[elementBytes:])})
	}
	return list
}
