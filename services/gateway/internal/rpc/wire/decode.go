package wire

import (
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nereid-serving/nereid/libs/tensor"
)

// textGuess is how much memory a request's names are expected to take, at
// most; more costs one more allocation.
const textGuess = 256

// dimsGuess is how many dimensions the inputs of a request are expected to
// have together; more cost more allocations.
const dimsGuess = 8

// maxEntries bounds a request's inputs, outputs, contents and parameters
// together: an empty one takes two bytes on the wire, many times as much in
// memory, and names are compared with each other.
const maxEntries = 8192

var errTooMany = fmt.Errorf("request has more than %d inputs, outputs, contents and parameters", maxEntries)

// Decode reads a ModelInferRequest into r, which it resets first. Nothing in
// r refers to data afterwards. It fails where proto.Unmarshal would, for more
// entries than any model needs, and when the pool has no memory; r is then
// empty.
func Decode(data mem.BufferSlice, pool *tensor.Pool, r *Request) error {
	r.Reset()
	d := decoder{Request: r, pool: pool}
	c := newCursor(data)
	r.Bytes = int64(c.left)
	r.text.Grow(min(c.left, textGuess))
	err := d.request(c)
	if err != nil {
		r.Reset()
	}
	return err
}

type decoder struct {
	*Request
	pool    *tensor.Pool
	entries int
}

func (d *decoder) request(c cursor) error {
	for c.left > 0 {
		f, err := c.field()
		if err == nil {
			err = d.requestField(f, &c)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) requestField(f field, c *cursor) error {
	switch f {
	case text(1):
		return d.string(c, &d.Model)
	case text(2):
		return d.string(c, &d.Version)
	case text(3):
		return d.string(c, &d.ID)
	case text(4):
		return d.parameter(c, &d.Parameters)
	case text(5):
		return d.input(c)
	case text(6):
		return d.output(c)
	case text(7):
		return d.raw(c)
	}
	return c.skipField(f)
}

// entry begins an input, output, raw content or parameter.
func (d *decoder) entry(c *cursor) (cursor, error) {
	if d.entries++; d.entries > maxEntries {
		return cursor{}, errTooMany
	}
	return c.message()
}

func (d *decoder) raw(c *cursor) error {
	expect := c.left
	m, err := d.entry(c)
	if err != nil {
		return err
	}
	ref, err := d.place(m.left, expect)
	if err != nil {
		return err
	}
	d.raws = append(d.raws, ref)
	dst, err := ref.Bytes()
	m.copyTo(dst)
	return err
}

// place gets memory for a tensor of n bytes.
func (d *decoder) place(n, expect int) (tensor.Ref, error) {
	ref, err := d.pack.place(d.pool, n, expect)
	if err != nil {
		return ref, fmt.Errorf("get memory for an input: %w", err)
	}
	return ref, nil
}

func (d *decoder) input(c *cursor) error {
	whole, err := d.entry(c)
	d.Inputs = append(d.Inputs, Input{})
	in := &d.Inputs[len(d.Inputs)-1]
	firstDim := len(d.dims)
	for m := whole; err == nil && m.left > 0; {
		var f field
		if f, err = m.field(); err == nil {
			err = d.inputField(f, &m, in)
		}
	}
	in.Shape = d.dims[firstDim:len(d.dims):len(d.dims)]
	if err != nil || !in.hasContents {
		return err
	}
	// The datatype may follow the contents: they are read once it is known.
	return d.contents(whole, in)
}

func (d *decoder) inputField(f field, c *cursor, in *Input) error {
	switch f {
	case text(1):
		return d.string(c, &in.Name)
	case text(2):
		return d.datatype(c, &in.Datatype)
	case text(3):
		return d.packedDims(c)
	case field{3, protowire.VarintType}:
		return d.dim(c)
	case text(4):
		return d.parameter(c, &in.Parameters)
	case text(inputContents):
		in.hasContents = true
	}
	return c.skipField(f)
}

func (d *decoder) dim(c *cursor) error {
	v, err := c.varint()
	if d.dims == nil {
		d.dims = make([]int64, 0, dimsGuess)
	}
	d.dims = append(d.dims, int64(v))
	return err
}

func (d *decoder) packedDims(c *cursor) error {
	m, err := c.message()
	for err == nil && m.left > 0 {
		err = d.dim(&m)
	}
	return err
}

func (d *decoder) output(c *cursor) error {
	m, err := d.entry(c)
	d.Outputs = append(d.Outputs, Output{})
	out := &d.Outputs[len(d.Outputs)-1]
	for err == nil && m.left > 0 {
		var f field
		if f, err = m.field(); err == nil {
			err = d.outputField(f, &m, out)
		}
	}
	return err
}

func (d *decoder) outputField(f field, c *cursor, out *Output) error {
	switch f {
	case text(1):
		return d.string(c, &out.Name)
	case text(2):
		return d.parameter(c, &out.Parameters)
	}
	return c.skipField(f)
}

// string reads a string into the request's common text memory.
func (d *decoder) string(c *cursor, s *string) error {
	b, err := c.utf8()
	if err != nil {
		return err
	}
	at := d.text.Len()
	d.text.Write(b)
	*s = d.text.String()[at:]
	return nil
}

func (d *decoder) datatype(c *cursor, t *tensor.Datatype) error {
	b, err := c.utf8()
	if err == nil {
		*t, _ = tensor.ParseDatatype(string(b))
	}
	return err
}
