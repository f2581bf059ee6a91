package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unicode/utf8"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// errTruncated is a message that ends within a field.
var errTruncated = errors.New("protobuf message is cut off")

// cursor reads a message that may be spread over several buffers.
type cursor struct {
	head []byte // what is left of the present buffer; may reach past left
	rest mem.BufferSlice
	left int // bytes that belong to the message
}

func newCursor(data mem.BufferSlice) cursor {
	return cursor{rest: data, left: data.Len()}
}

// window returns the bytes at hand in one piece: none only at the end.
func (c *cursor) window() []byte {
	for len(c.head) == 0 && len(c.rest) > 0 {
		c.head, c.rest = c.rest[0].ReadOnlyData(), c.rest[1:]
	}
	return c.head[:min(len(c.head), c.left)]
}

// advance passes over n bytes of the window.
func (c *cursor) advance(n int) {
	c.head = c.head[n:]
	c.left -= n
}

func (c *cursor) varint() (uint64, error) {
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
	v, n := protowire.ConsumeVarint(scratch[:peek.copyTo(scratch[:])])
	if n < 0 {
		return 0, protowire.ParseError(n)
	}
	c.skip(n)
	return v, nil
}

// field is what a tag says. A number with another wire type than the schema's
// is an unknown field, as it is for proto.Unmarshal.
type field struct {
	num protowire.Number
	typ protowire.Type
}

// text is a field that holds a string, bytes, a message or packed numbers.
func text(num protowire.Number) field { return field{num, protowire.BytesType} }

func (c *cursor) field() (field, error) {
	f, err := c.tag()
	if err == nil && f.num > protowire.MaxValidNumber {
		return field{}, fmt.Errorf("field number %d is too large", f.num)
	}
	return f, err
}

// tag reads a tag as it may be in an unknown group, where proto.Unmarshal does
// not mind large numbers.
func (c *cursor) tag() (field, error) {
	v, err := c.varint()
	if err != nil {
		return field{}, err
	}
	num, typ := protowire.DecodeTag(v)
	if num < protowire.MinValidNumber {
		return field{}, fmt.Errorf("invalid field number in tag %d", v)
	}
	return field{num, typ}, nil
}

// length reads the length of a length-delimited field and holds it against
// what is there, so that nothing is allocated for bytes that never came.
func (c *cursor) length() (int, error) {
	v, err := c.varint()
	if err != nil {
		return 0, err
	}
	if v > uint64(c.left) {
		return 0, errTruncated
	}
	return int(v), nil
}

// message reads a length-delimited field and returns a cursor over it.
func (c *cursor) message() (cursor, error) {
	n, err := c.length()
	if err != nil {
		return cursor{}, err
	}
	return c.next(n)
}

// next returns a cursor over the next n bytes and passes over them.
func (c *cursor) next(n int) (cursor, error) {
	if n > c.left {
		return cursor{}, errTruncated
	}
	inner := cursor{head: c.head, rest: c.rest, left: n}
	c.skip(n)
	return inner, nil
}

// bytes reads a length-delimited field. The result shares the message's
// memory if it lies in one buffer.
func (c *cursor) bytes() ([]byte, error) {
	n, err := c.length()
	if err != nil {
		return nil, err
	}
	if w := c.window(); n <= len(w) {
		c.advance(n)
		return w[:n:n], nil
	}
	b := make([]byte, n)
	c.copyTo(b)
	return b, nil
}

// copyTo fills dst with as much as there is and returns how much that was.
func (c *cursor) copyTo(dst []byte) int {
	total := 0
	for c.left > 0 && total < len(dst) {
		n := copy(dst[total:], c.window())
		c.advance(n)
		total += n
	}
	return total
}

// skip passes over n bytes, no more than are left.
func (c *cursor) skip(n int) {
	for n > 0 {
		k := min(n, len(c.window()))
		c.advance(k)
		n -= k
	}
}

// utf8 reads a string field.
func (c *cursor) utf8() ([]byte, error) {
	b, err := c.bytes()
	if err == nil && !utf8.Valid(b) {
		return nil, errors.New("string field contains invalid UTF-8")
	}
	return b, err
}

// skipField passes over the value of an unknown field.
func (c *cursor) skipField(f field) error {
	return c.skipNested(f, protowire.DefaultRecursionLimit)
}

func (c *cursor) skipNested(f field, depth int) error {
	switch f.typ {
	case protowire.VarintType:
		_, err := c.varint()
		return err
	case protowire.Fixed32Type:
		_, err := c.next(4)
		return err
	case protowire.Fixed64Type:
		_, err := c.next(8)
		return err
	case protowire.BytesType:
		_, err := c.message()
		return err
	case protowire.StartGroupType:
		return c.skipGroup(f.num, depth-1)
	}
	return fmt.Errorf("field %d has invalid wire type %d", f.num, f.typ)
}

func (c *cursor) skipGroup(num protowire.Number, depth int) error {
	if depth < 0 {
		return errors.New("protobuf groups are nested too deep")
	}
	for {
		f, err := c.tag()
		switch {
		case err != nil:
			return err
		case f == field{num, protowire.EndGroupType}:
			return nil
		}
		if err := c.skipNested(f, depth); err != nil {
			return err
		}
	}
}

func (c *cursor) fixed64() (uint64, error) {
	var b [8]byte
	if c.copyTo(b[:]) < len(b) {
		return 0, errTruncated
	}
	return binary.LittleEndian.Uint64(b[:]), nil
}
