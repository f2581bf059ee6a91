package wire

import (
	"encoding/binary"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nereid-serving/nereid/libs/tensor"
)

// inputContents is the field of an input that holds its typed contents.
const inputContents = 5

// lengthBytes precede each element of a BYTES tensor.
const lengthBytes = 4

// The kinds of contents, by their fields in InferTensorContents.
const (
	boolContents protowire.Number = 1 + iota
	intContents
	int64Contents
	uintContents
	uint64Contents
	fp32Contents
	fp64Contents
	bytesContents
	contentsEnd
)

// contents counts the values of InferTensorContents or writes them as tensor
// bytes.
type contents struct {
	elements [contentsEnd]int64 // by kind
	chars    int64              // in bytes_contents

	filling bool
	dst     []byte // what is still to be filled
	width   int    // bytes of an element
}

// size is the tensor's size in bytes if all elements are of datatype d.
func (t *contents) size(d tensor.Datatype) int64 {
	n := int64(0)
	for _, k := range t.elements {
		n += k
	}
	if d == tensor.Bytes {
		return lengthBytes*n + t.chars
	}
	return n * int64(d.Size())
}

// input reads all contents fields of an input, which count as one.
func (t *contents) input(c cursor) error {
	for c.left > 0 {
		f, err := c.field()
		switch {
		case err != nil:
		case f == text(inputContents):
			err = t.message(&c)
		default:
			err = c.skipField(f)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *contents) message(c *cursor) error {
	m, err := c.message()
	for err == nil && m.left > 0 {
		var f field
		if f, err = m.field(); err == nil {
			err = t.field(f, &m)
		}
	}
	return err
}

func (t *contents) field(f field, c *cursor) error {
	switch {
	case f.num >= contentsEnd:
		return c.skipField(f)
	case f == text(bytesContents):
		return t.element(c)
	case f.typ == protowire.BytesType:
		return t.packed(f.num, c)
	case f.typ == wireType(f.num):
		return t.value(f.num, c)
	}
	return c.skipField(f)
}

// wireType is the type of one number of a kind; bytes have their own.
func wireType(kind protowire.Number) protowire.Type {
	switch kind {
	case fp32Contents:
		return protowire.Fixed32Type
	case fp64Contents:
		return protowire.Fixed64Type
	case bytesContents:
		return protowire.BytesType
	}
	return protowire.VarintType
}

// packed reads numbers that lie side by side. Those of fixed width are
// tensor bytes already.
func (t *contents) packed(kind protowire.Number, c *cursor) error {
	m, err := c.message()
	width := 0
	switch wireType(kind) {
	case protowire.Fixed32Type:
		width = 4
	case protowire.Fixed64Type:
		width = 8
	}
	switch {
	case err != nil:
		return err
	case width == 0:
		return t.varints(kind, &m)
	case m.left%width != 0:
		return errTruncated
	}
	t.fixed(kind, m, width)
	return nil
}

func (t *contents) varints(kind protowire.Number, m *cursor) error {
	for m.left > 0 {
		v, err := m.varint()
		if err != nil {
			return err
		}
		t.varint(kind, v)
	}
	return nil
}

// value reads one number.
func (t *contents) value(kind protowire.Number, c *cursor) error {
	width := 4
	switch wireType(kind) {
	case protowire.VarintType:
		v, err := c.varint()
		if err == nil {
			t.varint(kind, v)
		}
		return err
	case protowire.Fixed64Type:
		width = 8
	}
	m, err := c.next(width)
	if err == nil {
		t.fixed(kind, m, width)
	}
	return err
}

func (t *contents) varint(kind protowire.Number, v uint64) {
	t.elements[kind]++
	if !t.filling {
		return
	}
	if kind == boolContents {
		v = protowire.EncodeBool(protowire.DecodeBool(v))
	}
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], v)
	t.dst = t.dst[copy(t.dst, b[:t.width]):]
}

func (t *contents) fixed(kind protowire.Number, m cursor, width int) {
	t.elements[kind] += int64(m.left / width)
	if t.filling {
		t.dst = t.dst[m.copyTo(t.dst):]
	}
}

func (t *contents) element(c *cursor) error {
	m, err := c.message()
	if err != nil {
		return err
	}
	t.elements[bytesContents]++
	t.chars += int64(m.left)
	if t.filling {
		binary.LittleEndian.PutUint32(t.dst, uint32(m.left))
		t.dst = t.dst[lengthBytes:]
		t.dst = t.dst[m.copyTo(t.dst):]
	}
	return nil
}
