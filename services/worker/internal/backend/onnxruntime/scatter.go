//go:build cgo

package onnxruntime

import (
	"fmt"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

// checkScattered makes sure that the output has as many elements as the requests
// get of it. Their dimensions are the model's affair.
func checkScattered(o *output, shape tensor.Shape) error {
	if n, ok := shape.Elements(); !ok || n != o.scattered {
		return fmt.Errorf("failed to split the output tensor in responses: expected %d elements by the shapes of its batch_output's source input, got shape %s", o.scattered, shape)
	}
	return nil
}

// scatter answers the group's requests with their rows of the outputs.
func (in *instance) scatter(b backend.Batch) {
	// Three allocations for all responses of the run.
	n, dims := len(in.group), 0
	for k := range in.outputs {
		dims += len(in.outputs[k].binding.io.Dims) + len(in.outputs[k].shape) + 1
	}
	responses := make([]infer.Response, n)
	tensors := make([]infer.Tensor, 0, n*len(in.outputs))
	requests := b.Requests()
	shapes := make(tensor.Shape, 0, n*dims)
	for g, i := range in.group {
		start := len(tensors)
		tensors, shapes = in.answer(requests, i, tensors, shapes)
		responses[g] = infer.Response{Final: true, Outputs: tensors[start:len(tensors):len(tensors)]}
	}
	for k := range in.outputs {
		in.outputs[k].drop()
	}
	for g, i := range in.group {
		b.Respond(i, &responses[g])
	}
}

// answer appends the outputs that the next request of the group wants.
func (in *instance) answer(requests []*infer.Request, i int, tensors []infer.Tensor, shapes tensor.Shape) ([]infer.Tensor, tensor.Shape) {
	r := requests[i]
	for k := range in.outputs {
		o := &in.outputs[k]
		from := len(shapes)
		var data tensor.Ref
		switch {
		case o.binding.scatter >= 0:
			shapes = in.appendScattered(shapes, o, requests, i)
			data = o.cutLike(shapes[from:])
		case len(o.binding.trims) > 0:
			shapes = in.appendTrimmed(shapes, o, requests, i)
			data = o.cutLike(shapes[from:])
		default:
			shapes = o.binding.appendClientShape(shapes, o.shape, r.BatchSize)
			data = o.cut(r.BatchSize, in.batchRows)
		}
		if !r.Wants(o.binding.io.Name) {
			data.Release()
			continue
		}
		tensors = append(tensors, infer.Tensor{
			Name: o.binding.io.Name, Datatype: o.binding.io.Datatype,
			Shape: shapes[from:len(shapes):len(shapes)], Data: data,
		})
	}
	return tensors, shapes
}

// cut returns the next rows of the output, with a reference of their own.
func (o *output) cut(rows, total int64) tensor.Ref {
	if o.buffer == nil {
		return tensor.Ref{}
	}
	n := o.bytes
	switch {
	case !o.binding.batches || rows == total:
	case o.binding.io.Datatype == tensor.Bytes:
		n = packedBytes(o.buffer.Bytes()[o.next:], o.elements(rows, total))
	default:
		n = o.bytes / total * rows
	}
	return o.part(n)
}

// cutLike returns as many elements of the output as a shape has, which was
// checked to be sane.
func (o *output) cutLike(shape tensor.Shape) tensor.Ref {
	if o.buffer == nil {
		return tensor.Ref{}
	}
	n, _ := shape.Elements()
	if o.binding.io.Datatype == tensor.Bytes {
		return o.part(packedBytes(o.buffer.Bytes()[o.next:], n))
	}
	return o.part(n * int64(o.binding.io.Datatype.Size()))
}

// part returns the next n bytes.
func (o *output) part(n int64) tensor.Ref {
	if n == 0 {
		return tensor.Ref{}
	}
	ref := tensor.InBuffer(o.buffer.Retain(), o.next, n)
	o.next += n
	return ref
}

// elements is the number of elements in rows of total rows.
func (o *output) elements(rows, total int64) int64 {
	n, _ := o.shape.Elements()
	return n / total * rows
}

// packedBytes is the size of the first n elements of a BYTES tensor that the
// shim has packed.
func packedBytes(data []byte, n int64) int64 {
	rest := data
	for range n {
		_, after, err := tensor.CutBytes(rest)
		if err != nil {
			break
		}
		rest = after
	}
	return int64(len(data) - len(rest))
}
