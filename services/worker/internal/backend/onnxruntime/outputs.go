//go:build cgo

package onnxruntime

import (
	"errors"
	"fmt"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// output is one output of a run.
type output struct {
	binding *tensorBinding
	pool    *tensor.Pool
	engine  *engine
	// bytes is the size, beforehand 0 if it is not known.
	bytes int64
	// bound is the arena's memory that a small output was written to.
	bound []byte
	// buffer holds the output, with one reference; nil if it is empty.
	buffer *tensor.Buffer
	// scattered is how many elements the requests get of an output that is given
	// out by the shapes of an input; -1 is more than any has.
	scattered int64
	// shape is the session's, in the call's memory.
	shape tensor.Shape
	// next is where the next request's rows begin.
	next int64
}

// drop releases what the output holds.
func (o *output) drop() {
	if o.buffer != nil {
		o.buffer.Release()
		o.buffer = nil
	}
}

// collect takes over the outputs of the run just made and checks them. On an
// error nothing is left to the runtime.
func (in *instance) collect(requests []*infer.Request) error {
	var first error
	for k := range in.outputs {
		o := &in.outputs[k]
		r := in.call.result(k)
		o.shape = r.shape
		err := in.take(o, &r)
		if err == nil {
			err = in.trim(o, requests)
		}
		if err != nil && first == nil {
			first = err
		}
	}
	return first
}

func (in *instance) take(o *output, r *result) error {
	switch {
	case o.bound != nil:
		return o.copyFrom(o.bound)
	case o.buffer != nil:
		return nil
	}
	if err := in.checkResult(o, r); err != nil {
		r.free(in.call.engine)
		return err
	}
	return o.adopt(r, in.call.reads(r.data))
}

// copyFrom puts the output into a buffer of its own.
func (o *output) copyFrom(data []byte) error {
	b, err := o.pool.Get(len(data))
	if err != nil {
		return errs.Wrap(errs.ExecutionFailed, err, "%v", err)
	}
	copy(b.Bytes(), data)
	o.buffer = b
	return nil
}

// adopt takes over memory that the runtime allocated. It is handed on as it
// is, unless it is small or is an input's memory, which a model that passes
// an input through gives as its output.
func (o *output) adopt(r *result, shared bool) error {
	if o.bytes == 0 {
		r.free(o.engine)
		return nil
	}
	data := bytesAt(r.data, o.bytes)
	if o.bytes < tensor.MappedThreshold || shared {
		err := o.copyFrom(data)
		r.free(o.engine)
		return err
	}
	engine, owner := o.engine, *r
	o.buffer = tensor.Wrap(data, true, func(*tensor.Buffer) { owner.free(engine) })
	return nil
}

// checkResult compares what the runtime gave with what the configuration
// promises to clients, and sets the output's size.
func (in *instance) checkResult(o *output, r *result) error {
	name, model := o.binding.io.Name, in.model.version.Ref.Name
	if r.element != o.binding.element {
		return errs.New(errs.ExecutionFailed, "output '%s' of model '%s' has datatype TYPE_%s, the model configuration expects %s",
			name, model, datatypeOf(r.element), o.binding.io.Datatype.ConfigName()).WithModel(model)
	}
	if err := in.checkShape(o, r.shape); err != nil {
		return errs.Wrap(errs.ExecutionFailed, err, "output '%s' of model '%s': %v", name, model, err).WithModel(model)
	}
	o.bytes = r.bytes
	if !r.packed {
		n, ok := r.shape.ByteSize(o.binding.io.Datatype)
		if !ok {
			return errs.New(errs.ExecutionFailed, "output '%s' of model '%s' has shape %s: too large", name, model, r.shape).WithModel(model)
		}
		o.bytes = n
	}
	return nil
}

func (in *instance) checkShape(o *output, shape tensor.Shape) error {
	if o.binding.scatter >= 0 {
		return checkScattered(o, shape)
	}
	if len(shape) == 0 && !o.binding.batches && allOnes(o.binding.io.Dims) {
		return nil // shown with the configured dimensions
	}
	row := shape
	if o.binding.batches {
		if len(shape) == 0 {
			return errors.New("failed to split the output tensor in responses: it has no batch dimension")
		}
		if rows := in.batchRows; shape[0] != rows {
			return fmt.Errorf("failed to split the output tensor in responses: expected batch size of %d in model output, got %d", rows, shape[0])
		}
		row = shape[1:]
	}
	if want := o.binding.io.BackendDims(); !want.Admits(row) {
		return fmt.Errorf("unexpected shape: expected %s, got %s", want, row)
	}
	return nil
}
