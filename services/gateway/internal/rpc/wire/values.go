package wire

import (
	"encoding/binary"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nereid-serving/nereid/libs/protoscan"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// inputContents is the field number of an input's typed contents.
const inputContents = 5

// lengthBytes is the size of the length before each element of a BYTES tensor.
const lengthBytes = 4

// The kinds of contents, by their field numbers in InferTensorContents.
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

// contents counts the values of InferTensorContents, or writes them as tensor bytes.
type contents struct {
	elements [contentsEnd]int64 // by kind
	chars    int64              // in bytes_contents

	filling bool
	dst     []byte // what remains to be filled
	width   int    // size of an element in bytes
}

// size returns the tensor's size in bytes if all elements have datatype d.
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

// input reads all contents fields of an input, which count as a single field.
func (t *contents) input(c protoscan.Cursor) error {
	for c.Left() > 0 {
		f, err := c.Field()
		switch {
		case err != nil:
		case f == protoscan.Text(inputContents):
			err = t.message(&c)
		default:
			err = c.SkipField(f)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *contents) message(c *protoscan.Cursor) error {
	m, err := c.Message()
	for err == nil && m.Left() > 0 {
		var f protoscan.Field
		if f, err = m.Field(); err == nil {
			err = t.field(f, &m)
		}
	}
	return err
}

func (t *contents) field(f protoscan.Field, c *protoscan.Cursor) error {
	switch {
	case f.Num >= contentsEnd:
		return c.SkipField(f)
	case f == protoscan.Text(bytesContents):
		return t.element(c)
	case f.Type == protowire.BytesType:
		return t.packed(f.Num, c)
	case f.Type == wireType(f.Num):
		return t.value(f.Num, c)
	}
	return c.SkipField(f)
}

// wireType returns the wire type of a single number of a kind, or that of bytes.
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

// packed reads packed numbers. Those of fixed width already are tensor bytes.
func (t *contents) packed(kind protowire.Number, c *protoscan.Cursor) error {
	m, err := c.Message()
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
	case m.Left()%width != 0:
		return protoscan.ErrTruncated
	}
	t.fixed(kind, m, width)
	return nil
}

func (t *contents) varints(kind protowire.Number, m *protoscan.Cursor) error {
	for m.Left() > 0 {
		v, err := m.Varint()
		if err != nil {
			return err
		}
		t.varint(kind, v)
	}
	return nil
}

// value reads one number.
func (t *contents) value(kind protowire.Number, c *protoscan.Cursor) error {
	width := 4
	switch wireType(kind) {
	case protowire.VarintType:
		v, err := c.Varint()
		if err == nil {
			t.varint(kind, v)
		}
		return err
	case protowire.Fixed64Type:
		width = 8
	}
	m, err := c.Next(width)
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

func (t *contents) fixed(kind protowire.Number, m protoscan.Cursor, width int) {
	t.elements[kind] += int64(m.Left() / width)
	if t.filling {
		t.dst = t.dst[m.CopyTo(t.dst):]
	}
}

func (t *contents) element(c *protoscan.Cursor) error {
	m, err := c.Message()
	if err != nil {
		return err
	}
	t.elements[bytesContents]++
	t.chars += int64(m.Left())
	if t.filling {
		binary.LittleEndian.PutUint32(t.dst, uint32(m.Left()))
		t.dst = t.dst[lengthBytes:]
		t.dst = t.dst[m.CopyTo(t.dst):]
	}
	return nil
}
