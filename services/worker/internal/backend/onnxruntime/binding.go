//go:build cgo

package onnxruntime

import (
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// tensorBinding is one configured input or output, matched with the session's. It is
// immutable.
type tensorBinding struct {
	io      *modelconfig.IO
	name    cname
	element int32
	batches bool
	// scatter is the index of the input by whose shapes an output is given
	// out; -1 gives it out by rows.
	scatter int
	// padding is an input's, if it may be padded; trims are the dimensions in
	// which an output is cut back.
	padding *modelconfig.PaddedInput
	trims   []trim
	// scalar: the session's tensor has no dimensions.
	scalar bool
	// row is, for an output whose shape follows from the number of rows, that
	// shape without the batch dimension, and rowBytes its size; rowBytes is
	// -1 for any other.
	row      tensor.Shape
	rowBytes int64
}

func newBinding(c *modelconfig.Config, io *modelconfig.IO, d sessionIO) tensorBinding {
	p := tensorBinding{
		io: io, name: newName(io.Name), element: d.element, batches: c.Batches(), scatter: -1,
		scalar: d.hasShape && len(d.dims) == 0, rowBytes: -1,
	}
	dims := io.BackendDims()
	if !d.hasShape || p.scalar || !dims.Fixed() {
		return p
	}
	if _, ok := dims.Prepend(max(c.MaxBatchSize, 1)).ByteSize(io.Datatype); ok {
		p.row = dims
		p.rowBytes, _ = dims.ByteSize(io.Datatype)
	}
	return p
}

// appendModelShape appends the shape that the session sees for a tensor of
// the client's shape, with rows rows.
func (p *tensorBinding) appendModelShape(dst tensor.Shape, client tensor.Shape, rows int64) tensor.Shape {
	if p.scalar {
		return dst
	}
	if p.batches {
		dst = append(dst, rows)
	}
	return p.appendRow(dst, client)
}

// appendRow appends the shape that the session sees for one row of a tensor of
// the client's shape.
func (p *tensorBinding) appendRow(dst tensor.Shape, client tensor.Shape) tensor.Shape {
	if p.batches {
		client = client[1:]
	}
	if !p.io.HasReshape {
		return append(dst, client...)
	}
	return tensor.AppendReshaped(dst, p.io.Dims, p.io.Reshape, client)
}

// appendClientShape appends the shape that the client sees for rows rows of
// an output of the session's shape.
func (p *tensorBinding) appendClientShape(dst tensor.Shape, model tensor.Shape, rows int64) tensor.Shape {
	if p.scalar || len(model) == 0 {
		return append(dst, p.io.Dims...)
	}
	if p.batches {
		dst = append(dst, rows)
		model = model[1:]
	}
	if !p.io.HasReshape {
		return append(dst, model...)
	}
	return tensor.AppendReshaped(dst, p.io.Reshape, p.io.Dims, model)
}
