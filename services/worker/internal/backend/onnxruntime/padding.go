//go:build cgo

package onnxruntime

import (
	"slices"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// maxPadded bounds the bytes of an input after padding, so that sums of such
// sizes are no nonsense. There is less memory long before.
const maxPadded = 1 << 40

// trim is a dimension of an output that each request gets as long as that of its
// input is.
type trim struct{ dim, input, inputDim int }

func trimsOf(c *modelconfig.Config, output string) (list []trim) {
	if c.Padding == nil {
		return nil
	}
	for _, t := range c.Padding.Outputs {
		if t.Name == output {
			list = append(list, trim{t.Dim, indexOf(c.Inputs, t.Input), t.InputDim})
		}
	}
	return list
}

// appendPadded appends a client's shape of input p, its variable dimensions as
// long as they are padded to.
func (m *model) appendPadded(dst tensor.Shape, p int, client tensor.Shape) tensor.Shape {
	dst = append(dst, client...)
	if m.inputs[p].padding == nil {
		return dst
	}
	for _, dim := range m.inputs[p].padding.Dims {
		d := &dst[len(dst)-len(client)+1+dim]
		*d = m.version.Config.Padding.Size(m.inputs[p].io.Name, dim, *d)
	}
	return dst
}

// padded returns the shape of a request's input p, padded; valid until the next
// call.
func (in *instance) padded(requests []*infer.Request, i, p int) tensor.Shape {
	in.row = in.model.appendPadded(in.row[:0], p, in.input(requests, i, p).Shape)
	return in.row
}

// groupShape returns the shape of the group's padded input p; valid until the
// next call.
func (in *instance) groupShape(requests []*infer.Request, p int) tensor.Shape {
	shape := in.padded(requests, in.group[0], p)
	shape[0] = in.batchRows
	return shape
}

// checkPadded makes sure that what is padded has a size that memory can have.
func (in *instance) checkPadded(requests []*infer.Request) error {
	for p := range in.model.inputs {
		io := in.model.inputs[p].io
		if in.model.inputs[p].padding == nil {
			continue
		}
		if n, ok := in.groupShape(requests, p).ByteSize(io.Datatype); !ok || n > maxPadded {
			return errs.New(errs.ExecutionFailed, "input '%s' of model '%s' is too large when it is padded to %s; set lower padding.buckets, or fewer padding.inputs",
				io.Name, in.model.version.Ref.Name, in.row).WithModel(in.model.version.Ref.Name)
		}
	}
	return nil
}

// pad writes input p of a request to the beginning of dst, padded, and returns
// how many bytes that are.
func (in *instance) pad(dst, data []byte, requests []*infer.Request, i, p int) int {
	shape, padded := in.input(requests, i, p).Shape, in.padded(requests, i, p)
	size := int64(in.model.inputs[p].io.Datatype.Size())
	dst = dst[:elements(padded)*size]
	if !shape.Equal(padded) {
		fillWith(dst, in.model.inputs[p].padding.Value)
	}
	copyBox(dst, padded, data, shape, size)
	return len(dst)
}

// fillWith repeats a value, of which dst is a multiple.
func fillWith(dst, value []byte) {
	if !slices.ContainsFunc(value, func(b byte) bool { return b != 0 }) {
		clear(dst)
		return
	}
	for n := copy(dst, value); n < len(dst); n *= 2 {
		copy(dst[n:], dst[:n])
	}
}

// copyBox copies the elements that two tensors of one rank have in common, each
// of size bytes. No dimension is negative, and both have the bytes of their
// shapes.
func copyBox(dst []byte, to tensor.Shape, src []byte, from tensor.Shape, size int64) {
	if to.Equal(from) {
		copy(dst, src)
		return
	}
	dstStep, srcStep := elements(to[1:])*size, elements(from[1:])*size
	if n := min(to[0], from[0]); dstStep == srcStep && to[1:].Equal(from[1:]) {
		copy(dst, src[:n*srcStep])
		return
	}
	for k := range min(to[0], from[0]) {
		copyBox(dst[k*dstStep:(k+1)*dstStep], to[1:], src[k*srcStep:(k+1)*srcStep], from[1:], size)
	}
}

// elements is the product of dimensions whose tensor exists.
func elements(s tensor.Shape) int64 {
	n, _ := s.Elements()
	return n
}

// checkTrims makes sure that an output is as long as its inputs were padded to.
func (in *instance) checkTrims(o *output, requests []*infer.Request) error {
	for _, t := range o.binding.trims {
		want := in.padded(requests, in.group[0], t.input)[1+t.inputDim]
		if got := o.shape[1+t.dim]; got != want {
			return errs.New(errs.ExecutionFailed, "output '%s' of model '%s' has %d in dimension %d, not %d, to which input '%s' was padded; correct padding.outputs",
				o.binding.io.Name, in.model.version.Ref.Name, got, t.dim, want, in.model.inputs[t.input].io.Name).WithModel(in.model.version.Ref.Name)
		}
	}
	return nil
}

// trim cuts an output to what each request gets of it, one after another.
func (in *instance) trim(o *output, requests []*infer.Request) error {
	if len(o.binding.trims) == 0 {
		return nil
	}
	if err := in.checkTrims(o, requests); err != nil {
		return err
	}
	size, whole := int64(o.binding.io.Datatype.Size()), int64(0)
	for _, i := range in.group {
		in.shape = in.appendTrimmed(in.shape[:0], o, requests, i)
		whole += elements(in.shape) * size
	}
	if whole == o.bytes {
		return nil
	}
	var trimmed *tensor.Buffer
	if whole > 0 {
		var err error
		if trimmed, err = o.pool.Get(int(whole)); err != nil {
			return in.failed(err)
		}
		in.cutOut(trimmed.Bytes(), o, requests)
	}
	o.drop()
	o.buffer, o.bytes = trimmed, whole
	return nil
}

// cutOut copies what each request gets of an output.
func (in *instance) cutOut(dst []byte, o *output, requests []*infer.Request) {
	size, src := int64(o.binding.io.Datatype.Size()), o.buffer.Bytes()
	for _, i := range in.group {
		in.shape = in.appendTrimmed(in.shape[:0], o, requests, i)
		in.row = append(in.row[:0], o.shape...)
		in.row[0] = requests[i].BatchSize
		to, from := elements(in.shape)*size, elements(in.row)*size
		copyBox(dst[:to], in.shape, src[:from], in.row, size)
		dst, src = dst[to:], src[from:]
	}
}

// appendTrimmed appends the shape that a request gets of an output.
func (in *instance) appendTrimmed(dst tensor.Shape, o *output, requests []*infer.Request, i int) tensor.Shape {
	from := len(dst)
	dst = o.binding.appendClientShape(dst, o.shape, requests[i].BatchSize)
	for _, t := range o.binding.trims {
		dst[from+1+t.dim] = in.input(requests, i, t.input).Shape[1+t.inputDim]
	}
	return dst
}
