package onnxheader

import (
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
)

// window is how many bytes are read at once. Weights are jumped over, so a
// larger one would mostly read what is not looked at.
const window = 16 << 10

// The bounds of one model. The largest models that are published stay below a
// hundredth of them.
const (
	maxFields = 1 << 24 // fields looked at
	maxText   = 1 << 25 // bytes of names and notes that are kept
	maxName   = 1 << 20 // bytes of one of them
	maxNames  = 1 << 20 // weights, or files of weights
	maxValues = 1 << 16 // inputs, outputs, dimensions of all of them, operator sets or notes
)

// scanner walks over the fields of a protobuf message that is not in memory.
type scanner struct {
	from io.ReaderAt
	pos  int64 // of the next byte
	end  int64 // of the message that is being read

	buffer []byte // the bytes at start
	start  int64
	fields int
	text   int
}

// field is the beginning of a field: its number and type, and the value of a
// varint or the length of bytes.
type field struct {
	number protowire.Number
	wire   protowire.Type
	value  uint64
}

// next reads the beginning of the next field, and jumps over fields of fixed
// size. It returns false at the end of the message.
func (s *scanner) next() (field, bool, error) {
	for s.pos < s.end {
		if s.fields++; s.fields > maxFields {
			return field{}, false, malformed("it has more than %d fields", maxFields)
		}
		f, err := s.field()
		if err != nil {
			return field{}, false, err
		}
		if f.wire == protowire.VarintType || f.wire == protowire.BytesType {
			return f, true, nil
		}
	}
	return field{}, false, nil
}

func (s *scanner) field() (field, error) {
	tag, err := s.varint()
	if err != nil {
		return field{}, err
	}
	number, wire := protowire.DecodeTag(tag)
	if number < protowire.MinValidNumber {
		return field{}, malformed("field number %d", number)
	}
	f := field{number: number, wire: wire}
	switch wire {
	case protowire.VarintType:
		f.value, err = s.varint()
		return f, err
	case protowire.Fixed32Type:
		return f, s.skip(4)
	case protowire.Fixed64Type:
		return f, s.skip(8)
	case protowire.BytesType:
		f.value, err = s.varint()
		if err == nil && f.value > uint64(s.end-s.pos) {
			err = malformed("a field of %d bytes where %d are left: the file is cut off or damaged", f.value, s.end-s.pos)
		}
		return f, err
	}
	return f, malformed("field type %d", wire) // groups are not in the format
}

// within reads the message of a field by calling each for its fields. each
// must consume the bytes of those that it takes, by [scanner.within],
// [scanner.string] or [scanner.skip]; that of a field of bytes which it leaves
// alone is jumped over.
func (s *scanner) within(length uint64, each func(field) error) error {
	outer := s.end
	s.end = s.pos + int64(length)
	for {
		f, more, err := s.next()
		if err != nil {
			return err
		}
		if !more {
			break
		}
		after := s.pos
		if f.wire == protowire.BytesType {
			after += int64(f.value)
		}
		if err := each(f); err != nil {
			return err
		}
		s.pos = after
	}
	s.end = outer
	return nil
}

// string reads the text of a field.
func (s *scanner) string(f field) (string, error) {
	if f.wire != protowire.BytesType {
		return "", malformed("field %d is not text", f.number)
	}
	if f.value > maxName {
		return "", malformed("a name of %d bytes, more than the %d that are allowed", f.value, maxName)
	}
	if s.text += int(f.value); s.text > maxText {
		return "", malformed("it has more than %d bytes of names", maxText)
	}
	b := make([]byte, f.value)
	n, err := s.from.ReadAt(b, s.pos)
	if n < len(b) {
		return "", short(err)
	}
	s.pos += int64(n)
	return string(b), nil
}

func (s *scanner) varint() (uint64, error) {
	b, err := s.peek()
	if err != nil {
		return 0, err
	}
	v, n := protowire.ConsumeVarint(b)
	if n < 0 {
		return 0, malformed("a number that is cut off or longer than 10 bytes")
	}
	s.pos += int64(n)
	return v, nil
}

// peek gives the next bytes of the message, enough for a varint if there are
// as many.
func (s *scanner) peek() ([]byte, error) {
	const varint = 10
	left := s.end - s.pos
	at := s.pos - s.start
	if at < 0 || at >= int64(len(s.buffer)) || int64(len(s.buffer))-at < min(varint, left) {
		if err := s.fill(); err != nil {
			return nil, err
		}
		at = 0
	}
	b := s.buffer[at:]
	return b[:min(int64(len(b)), left)], nil
}

// fill reads the window at pos.
func (s *scanner) fill() error {
	if s.buffer == nil {
		s.buffer = make([]byte, window)
	}
	s.buffer, s.start = s.buffer[:cap(s.buffer)], s.pos
	n, err := s.from.ReadAt(s.buffer, s.pos)
	s.buffer = s.buffer[:n]
	if int64(n) < min(window, s.end-s.pos) {
		return short(err)
	}
	return nil
}

func (s *scanner) skip(n int64) error {
	if n > s.end-s.pos {
		return malformed("a field of %d bytes where %d are left: the file is cut off or damaged", n, s.end-s.pos)
	}
	s.pos += n
	return nil
}

// short is the error of a source that ends before its size.
func short(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}
