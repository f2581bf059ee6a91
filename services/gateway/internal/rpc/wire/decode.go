package wire

import (
	"fmt"
	"math"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// textGuess is how much memory a request's names are expected to take, at
// most; more costs one more allocation.
const textGuess = 256

// dimsGuess is how many dimensions the inputs of a request are expected to
// have together; more cost more allocations.
const dimsGuess = 8

// Decode reads a ModelInferRequest into r, which it resets first. Nothing in
// r refers to data afterwards. It fails where proto.Unmarshal would, and when
// the pool has no memory; r is then empty.
func Decode(data mem.BufferSlice, pool *tensor.Pool, r *Request) error {
	r.Reset()
	d := decoder{Request: r, pool: pool}
	c := newCursor(data)
	r.text.Grow(min(c.left, textGuess))
	err := d.request(c)
	if err != nil {
		r.Reset()
	}
	return err
}

type decoder struct {
	*Request
	pool *tensor.Pool
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

func (d *decoder) raw(c *cursor) error {
	expect := c.left
	n, err := c.length()
	if err != nil {
		return err
	}
	ref, err := d.place(n, expect)
	if err != nil {
		return err
	}
	d.raws = append(d.raws, ref)
	dst, err := ref.Bytes()
	c.copyTo(dst)
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
	whole, err := c.message()
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
	m, err := c.message()
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

// parameter reads an entry of a map of parameters.
func (d *decoder) parameter(c *cursor, list *[]infer.Parameter) error {
	m, err := c.message()
	var p infer.Parameter
	for err == nil && m.left > 0 {
		var f field
		if f, err = m.field(); err == nil {
			err = d.parameterField(f, &m, &p)
		}
	}
	*list = append(*list, p)
	return err
}

func (d *decoder) parameterField(f field, c *cursor, p *infer.Parameter) error {
	switch f {
	case text(1):
		return d.string(c, &p.Key)
	case text(2):
		return d.value(c, &p.Value)
	}
	return c.skipField(f)
}

func (d *decoder) value(c *cursor, v *any) error {
	m, err := c.message()
	for err == nil && m.left > 0 {
		var f field
		if f, err = m.field(); err == nil {
			err = d.valueField(f, &m, v)
		}
	}
	return err
}

func (d *decoder) valueField(f field, c *cursor, v *any) error {
	switch f {
	case text(3):
		var s string
		err := d.string(c, &s)
		*v = s
		return err
	case field{4, protowire.Fixed64Type}:
		bits, err := c.fixed64()
		*v = math.Float64frombits(bits)
		return err
	case field{1, protowire.VarintType}, field{2, protowire.VarintType}, field{5, protowire.VarintType}:
		n, err := c.varint()
		*v = integer(f.num, n)
		return err
	}
	return c.skipField(f)
}

// integer is the value of a parameter that travels as a varint.
func integer(num protowire.Number, n uint64) any {
	switch num {
	case 1:
		return protowire.DecodeBool(n)
	case 2:
		return int64(n)
	}
	return n
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
