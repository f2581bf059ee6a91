package wire

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc/mem"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/protoscan"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
)

// textGuess is the expected maximum size of a request's names; more costs another allocation.
const textGuess = 256

// dimsGuess is the expected total number of dimensions of a request's inputs; more cost more allocations.
const dimsGuess = 8

// maxEntries bounds a request's inputs, outputs, contents, parameters and dimensions together: an entry takes a
// byte or two on the wire and many times as much in memory, and names are compared pairwise.
const maxEntries = 8192

// The maximum memory of an entry in bytes in addition to its texts, including a dimension.
const entryBytes = 256

// Decode decodes a ModelInferRequest into r, which it resets first. Afterwards r has no references to data.
// What the message becomes is charged to the account before memory is allocated for it, and stays charged.
// Decode fails where proto.Unmarshal would, for more entries than any model needs, and when the account or the
// pool has no memory; r then has at most its id.
//
// Large typed contents wait for their turn to be decoded, until ctx ends: see [memory.Account.StartCoding].
func Decode(ctx context.Context, data mem.BufferSlice, pool *tensor.Pool, account *memory.Account, r *Request) error {
	r.Reset()
	d := decoder{Request: r, ctx: ctx, pool: pool, account: account}
	c := protoscan.New(data)
	err := d.small(textGuess)
	if err == nil {
		r.text.Grow(min(c.Left(), textGuess))
		err = d.request(c)
	}
	if err != nil {
		id := strings.Clone(r.ID[:min(len(r.ID), maxRefusedID)])
		r.Reset()
		r.ID = id
	}
	return err
}

// maxRefusedID is how many bytes of a refused request's id are kept.
const maxRefusedID = 256

type decoder struct {
	*Request
	ctx     context.Context
	pool    *tensor.Pool
	account *memory.Account
	entries int
	typed   int   // bytes of inputs with typed contents
	credit  int64 // charged for entries and texts, and not used yet
	tensors int64 // charged for tensors, and not used yet
}

// grant is how much is charged for entries and texts at a time; one grant is usually enough.
const grant = 4 << 10

// small charges n bytes of entries or texts.
func (d *decoder) small(n int64) error {
	if d.credit -= n; d.credit >= 0 {
		return nil
	}
	more := max(-d.credit, grant)
	if err := d.account.Retain(more); err != nil {
		return err
	}
	d.credit += more
	return nil
}

func (d *decoder) request(c protoscan.Cursor) error {
	for c.Left() > 0 {
		f, err := c.Field()
		if err == nil {
			err = d.requestField(f, &c)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) requestField(f protoscan.Field, c *protoscan.Cursor) error {
	switch f {
	case protoscan.Text(1):
		return d.string(c, &d.Model)
	case protoscan.Text(2):
		return d.string(c, &d.Version)
	case protoscan.Text(3):
		return d.string(c, &d.ID)
	case protoscan.Text(4):
		return d.parameter(c, &d.Parameters)
	case protoscan.Text(5):
		return d.input(c)
	case protoscan.Text(6):
		return d.output(c)
	case protoscan.Text(7):
		return d.raw(c)
	}
	return c.SkipField(f)
}

// entry starts an input, output, raw content or parameter.
func (d *decoder) entry(c *protoscan.Cursor) (protoscan.Cursor, error) {
	if err := d.count(); err != nil {
		return protoscan.Cursor{}, err
	}
	return c.Message()
}

// count counts one more entry.
func (d *decoder) count() error {
	if d.entries++; d.entries > maxEntries {
		return errs.New(errs.InputTooLarge, "request has more than %d inputs, outputs, contents, parameters and dimensions", maxEntries)
	}
	return d.small(entryBytes)
}

func (d *decoder) raw(c *protoscan.Cursor) error {
	expect := c.Left()
	m, err := d.entry(c)
	if err != nil {
		return err
	}
	ref, err := d.place(m.Left(), expect)
	if err != nil {
		return err
	}
	d.raws = append(d.raws, ref)
	dst, err := ref.Bytes()
	m.CopyTo(dst)
	return err
}

// place charges and allocates memory for a tensor of n bytes. expect is the maximum number of bytes still to
// follow in the message, including n; if it is small, it is charged at once.
func (d *decoder) place(n, expect int) (tensor.Ref, error) {
	if d.tensors -= int64(n); d.tensors < 0 {
		more := max(-d.tensors, int64(min(expect, tensor.MappedThreshold)))
		if err := d.account.Receive(more); err != nil {
			return tensor.Ref{}, err
		}
		d.tensors += more
	}
	ref, err := d.pack.Place(d.pool, n, expect)
	if err != nil {
		return ref, fmt.Errorf("get memory for an input: %w", err)
	}
	return ref, nil
}

func (d *decoder) input(c *protoscan.Cursor) error {
	whole, err := d.entry(c)
	if err != nil {
		return err
	}
	d.Inputs = append(d.Inputs, Input{})
	in := &d.Inputs[len(d.Inputs)-1]
	firstDim := len(d.dims)
	for m := whole; err == nil && m.Left() > 0; {
		var f protoscan.Field
		if f, err = m.Field(); err == nil {
			err = d.inputField(f, &m, in)
		}
	}
	in.Shape = d.dims[firstDim:len(d.dims):len(d.dims)]
	if err != nil || !in.hasContents {
		return err
	}
	// The datatype may follow the contents, which are decoded once it is known.
	return d.contents(whole, in)
}

func (d *decoder) inputField(f protoscan.Field, c *protoscan.Cursor, in *Input) error {
	switch f {
	case protoscan.Text(1):
		return d.string(c, &in.Name)
	case protoscan.Text(2):
		return d.datatype(c, &in.Datatype)
	case protoscan.Text(3):
		return d.packedDims(c)
	case protoscan.Varint(3):
		return d.dim(c)
	case protoscan.Text(4):
		return d.parameter(c, &in.Parameters)
	case protoscan.Text(inputContents):
		in.hasContents = true
	}
	return c.SkipField(f)
}

func (d *decoder) dim(c *protoscan.Cursor) error {
	if err := d.count(); err != nil {
		return err
	}
	v, err := c.Varint()
	if d.dims == nil {
		d.dims = make([]int64, 0, dimsGuess)
	}
	d.dims = append(d.dims, int64(v))
	return err
}

func (d *decoder) packedDims(c *protoscan.Cursor) error {
	m, err := c.Message()
	for err == nil && m.Left() > 0 {
		err = d.dim(&m)
	}
	return err
}

func (d *decoder) output(c *protoscan.Cursor) error {
	m, err := d.entry(c)
	if err != nil {
		return err
	}
	d.Outputs = append(d.Outputs, Output{})
	out := &d.Outputs[len(d.Outputs)-1]
	for err == nil && m.Left() > 0 {
		var f protoscan.Field
		if f, err = m.Field(); err == nil {
			err = d.outputField(f, &m, out)
		}
	}
	return err
}

func (d *decoder) outputField(f protoscan.Field, c *protoscan.Cursor, out *Output) error {
	switch f {
	case protoscan.Text(1):
		return d.string(c, &out.Name)
	case protoscan.Text(2):
		return d.parameter(c, &out.Parameters)
	}
	return c.SkipField(f)
}

// string reads a string into the request's shared text memory.
func (d *decoder) string(c *protoscan.Cursor, s *string) error {
	b, err := c.UTF8()
	if err != nil {
		return err
	}
	// A builder that grows leaves its old memory to the earlier strings.
	if err := d.small(2 * int64(len(b))); err != nil {
		return err
	}
	at := d.text.Len()
	d.text.Write(b)
	*s = d.text.String()[at:]
	return nil
}

func (d *decoder) datatype(c *protoscan.Cursor, t *tensor.Datatype) error {
	b, err := c.UTF8()
	if err == nil {
		*t, _ = tensor.ParseDatatype(string(b))
	}
	return err
}
