package rest

import (
	"encoding/binary"
	"math"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// readRaw reads a body that is nothing but the model's only input, and requests the outputs as bytes.
func (c *call) readRaw(b *body, v *core.Version, q *infer.Request) error {
	config := v.Config
	if n := len(config.Inputs); n != 1 {
		return refuseRaw("Raw request must only have 1 input (found 1) to be deduced but got %d inputs in '%s' model configuration",
			n, v.Ref.Name)
	}
	if b.size > c.options.MaxInput {
		return errs.New(errs.InputTooLarge, "Raw input has a byte_size (%d bytes) that exceeds the maximum allowed value of %d bytes. "+
			"Use --http-max-input-size to increase the limit.", b.size, c.options.MaxInput)
	}
	spec := &config.Inputs[0]
	shape, err := rawShape(config, spec, b.size)
	if err != nil {
		return err
	}
	in := infer.Tensor{Name: spec.Name, Datatype: spec.Datatype, Shape: shape}
	if in.Data, err = c.rawData(b, spec.Datatype); err != nil {
		return err
	}
	q.Inputs = append(q.Inputs, in)
	c.envelope.BinaryOutputs = true
	return nil
}

func refuseRaw(format string, args ...any) error {
	return errs.New(errs.ShapeMismatch, "[request id: <id_unknown>] "+format, args...)
}

// rawShape deduces the shape of a raw input of size bytes: one row, and the variable dimension, if any, set to
// match the size.
func rawShape(config *modelconfig.Config, spec *modelconfig.IO, size int64) (tensor.Shape, error) {
	shape := append(tensor.Shape{}, spec.Dims...)
	variable := -1
	for i, d := range shape {
		if d >= 0 {
			continue
		}
		if variable >= 0 {
			return nil, refuseRaw("The shape of the raw input '%s' can not be deduced because there are more than one variable-sized dimension", spec.Name)
		}
		variable, shape[i] = i, 1
	}
	if spec.Datatype == tensor.Bytes {
		if n, ok := shape.Elements(); !ok || n != 1 || variable >= 0 {
			return nil, refuseRaw("For BYTE datatype raw input '%s', the model must have input shape [1]", spec.Name)
		}
	} else if row, ok := shape.ByteSize(spec.Datatype); ok && variable >= 0 && row > 0 {
		shape[variable] = size / row // later checks refuse a remainder
	}
	if config.Batches() {
		shape = shape.Prepend(1)
	}
	return shape, nil
}

// rawData reads the whole body as the bytes of a tensor.
func (c *call) rawData(b *body, d tensor.Datatype) (tensor.Ref, error) {
	prefix := int64(0)
	if d == tensor.Bytes {
		prefix = 4
		if b.size > math.MaxUint32 {
			return tensor.Ref{}, refuseRaw("a string of %d bytes is longer than a BYTES element can be", b.size)
		}
	}
	if prefix+b.size == 0 {
		return tensor.Ref{}, nil
	}
	buf, err := c.fill(b, prefix, b.size)
	if err != nil {
		return tensor.Ref{}, err
	}
	if prefix > 0 {
		binary.LittleEndian.PutUint32(buf.Bytes(), uint32(b.size))
	}
	return tensor.InBuffer(buf, 0, prefix+b.size), nil
}
