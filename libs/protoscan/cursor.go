// Package protoscan parses protobuf messages by hand from the network buffers in
// which they arrived, without the generated types, and accepts and rejects the
// same bytes as proto.Unmarshal. It allocates nothing for bytes that have not
// arrived.
package protoscan

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unicode/utf8"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// ErrTruncated is a message that ends within a field.
var ErrTruncated = errors.New("protobuf message is cut off")

// Cursor reads a message that may be spread over several buffers.
type Cursor struct {
	head []byte // what is left of the present buffer; may reach past left
	rest mem.BufferSlice
	left int // bytes that belong to the message
}

// New returns a cursor over a message. It reads data as long as it is used, and
// holds no references.
func New(data mem.BufferSlice) Cursor {
	return Cursor{rest: data, left: data.Len()}
}

// Left returns the number of unread bytes of the message.
func (c *Cursor) Left() int { return c.left }

// window returns the bytes at hand in one piece: none only at the end.
func (c *Cursor) window() []byte {
	for len(c.head) == 0 && len(c.rest) > 0 {
		c.head, c.rest = c.rest[0].ReadOnlyData(), c.rest[1:]
	}
	return c.head[:min(len(c.head), c.left)]
}

// advance passes over n bytes of the window.
func (c *Cursor) advance(n int) {
	c.head = c.head[n:]
	c.left -= n
}

// Varint reads a number.
func (c *Cursor) Varint() (uint64, error) {
	if len(c.head) > 0 && c.left > 0 && c.head[0] < 0x80 { // most are of one byte
		v := uint64(c.head[0])
		c.advance(1)
		return v, nil
	}
	if v, n := protowire.ConsumeVarint(c.window()); n > 0 {
		c.advance(n)
		return v, nil
	}
	// Either broken or across a border of buffers.
	var scratch [10]byte
	peek := *c
	v, n := protowire.ConsumeVarint(scratch[:peek.CopyTo(scratch[:])])
	if n < 0 {
		return 0, protowire.ParseError(n)
	}
	c.Skip(n)
	return v, nil
}

// Field is the content of a tag. A number with another wire type than the schema's is an
// unknown field, as it is for proto.Unmarshal.
type Field struct {
	Num  protowire.Number
	Type protowire.Type
}

// Text is a field that holds a string, bytes, a message or packed numbers.
func Text(num protowire.Number) Field { return Field{num, protowire.BytesType} }

// Varint is a field that holds one number of any size, a bool or an enum.
func Varint(num protowire.Number) Field { return Field{num, protowire.VarintType} }

// Fixed64 is a field that holds a number of 8 bytes.
func Fixed64(num protowire.Number) Field { return Field{num, protowire.Fixed64Type} }

// Field reads a tag.
func (c *Cursor) Field() (Field, error) {
	f, err := c.tag()
	if err == nil && f.Num > protowire.MaxValidNumber {
		return Field{}, fmt.Errorf("field number %d is too large", f.Num)
	}
	return f, err
}

// tag reads a tag as it may be in an unknown group, where proto.Unmarshal does
// not mind large numbers.
func (c *Cursor) tag() (Field, error) {
	v, err := c.Varint()
	if err != nil {
		return Field{}, err
	}
	num, typ := protowire.DecodeTag(v)
	if num < protowire.MinValidNumber {
		return Field{}, fmt.Errorf("invalid field number in tag %d", v)
	}
	return Field{num, typ}, nil
}

// length reads the length of a length-delimited field and holds it against
// what is there, so that nothing is allocated for bytes that never came.
func (c *Cursor) length() (int, error) {
	v, err := c.Varint()
	if err != nil {
		return 0, err
	}
	if v > uint64(c.left) {
		return 0, ErrTruncated
	}
	return int(v), nil
}

// Message reads a length-delimited field and returns a cursor over it.
func (c *Cursor) Message() (Cursor, error) {
	n, err := c.length()
	if err != nil {
		return Cursor{}, err
	}
	return c.Next(n)
}

// Next returns a cursor over the next n bytes and passes over them.
func (c *Cursor) Next(n int) (Cursor, error) {
	if n > c.left {
		return Cursor{}, ErrTruncated
	}
	inner := Cursor{head: c.head, rest: c.rest, left: n}
	c.Skip(n)
	return inner, nil
}

// Bytes reads a length-delimited field. The result shares the message's
// memory if it lies in one buffer.
func (c *Cursor) Bytes() ([]byte, error) {
	n, err := c.length()
	if err != nil {
		return nil, err
	}
	if w := c.window(); n <= len(w) {
		c.advance(n)
		return w[:n:n], nil
	}
	b := make([]byte, n)
	c.CopyTo(b)
	return b, nil
}

// CopyTo copies as many bytes as are left to dst and returns their number.
func (c *Cursor) CopyTo(dst []byte) int {
	total := 0
	for c.left > 0 && total < len(dst) {
		n := copy(dst[total:], c.window())
		c.advance(n)
		total += n
	}
	return total
}

// Skip passes over n bytes, no more than are left.
func (c *Cursor) Skip(n int) {
	for n > 0 {
		k := min(n, len(c.window()))
		c.advance(k)
		n -= k
	}
}

// UTF8 reads a string field.
func (c *Cursor) UTF8() ([]byte, error) {
	b, err := c.Bytes()
	if err == nil && !utf8.Valid(b) {
		return nil, errors.New("string field contains invalid UTF-8")
	}
	return b, err
}

// SkipField passes over the value of an unknown field.
func (c *Cursor) SkipField(f Field) error {
	return c.skipNested(f, protowire.DefaultRecursionLimit)
}

func (c *Cursor) skipNested(f Field, depth int) error {
	switch f.Type {
	case protowire.VarintType:
		_, err := c.Varint()
		return err
	case protowire.Fixed32Type:
		_, err := c.Next(4)
		return err
	case protowire.Fixed64Type:
		_, err := c.Next(8)
		return err
	case protowire.BytesType:
		_, err := c.Message()
		return err
	case protowire.StartGroupType:
		return c.skipGroup(f.Num, depth)
	}
	return fmt.Errorf("field %d has invalid wire type %d", f.Num, f.Type)
}

func (c *Cursor) skipGroup(num protowire.Number, depth int) error {
	if depth < 0 {
		return errors.New("protobuf groups are nested too deep")
	}
	for {
		f, err := c.tag()
		switch {
		case err != nil:
			return err
		case f == Field{num, protowire.EndGroupType}:
			return nil
		}
		if err := c.skipNested(f, depth-1); err != nil {
			return err
		}
	}
}

// Fixed64 reads a number of 8 bytes.
func (c *Cursor) Fixed64() (uint64, error) {
	var b [8]byte
	if c.CopyTo(b[:]) < len(b) {
		return 0, ErrTruncated
	}
	return binary.LittleEndian.Uint64(b[:]), nil
}
