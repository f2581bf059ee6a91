package jsoninfer

import (
	"encoding/binary"
	"math"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// elements reads the arrays of a "data" member into the bytes of a tensor.
type elements struct {
	*scanner
	datatype tensor.Datatype
	// dst has space for limit elements, except for Bytes, whose elements are appended.
	dst          []byte
	count, limit int64
	num          number
	// lone says that a value other than an array is the only element.
	lone bool
}

// read reads the value of "data" and returns the tensor's bytes.
func (e *elements) read() ([]byte, error) {
	switch array := e.peek() == '['; {
	case array:
		if err := e.walk(); err != nil {
			return nil, err
		}
	case !e.lone:
		return nil, unable("data", errNonArray)
	default:
		if err := e.element(); err != nil {
			return nil, err
		}
		e.count++
	}
	if e.datatype != tensor.Bytes && e.count < e.limit {
		return nil, wrongCount()
	}
	return e.dst, nil
}

// walk follows the brackets. Elements come in runs, each of which is read in one go.
func (e *elements) walk() error {
	depth := 0
	for {
		opened := false
		for e.accept('[') {
			opened = true
			if depth++; depth > MaxDepth {
				return tooDeep()
			}
		}
		if empty := opened && e.peek() == ']'; !empty {
			if err := e.run(); err != nil {
				return err
			}
		}
		for e.accept(']') {
			if depth--; depth == 0 {
				return nil
			}
		}
		if !e.accept(',') {
			return e.fail("Missing a comma or ']' after an array element.")
		}
	}
}

// run reads elements up to a comma before an array, or up to anything but a comma.
func (e *elements) run() error {
	for {
		if e.count == e.limit && e.datatype != tensor.Bytes {
			if err := e.skip(); err != nil { // invalid JSON is reported as such
				return err
			}
			return wrongCount()
		}
		if err := e.element(); err != nil {
			return err
		}
		e.count++
		if e.peek() != ',' {
			return nil
		}
		comma := e.pos
		if e.pos++; e.peek() == '[' {
			e.pos = comma
			return nil
		}
	}
}

func (e *elements) element() error {
	switch e.datatype {
	case tensor.FP32:
		return e.float32()
	case tensor.FP64:
		return e.float64()
	case tensor.Int8, tensor.Int16, tensor.Int32, tensor.Int64:
		return e.signed()
	case tensor.Uint8, tensor.Uint16, tensor.Uint32, tensor.Uint64:
		return e.unsigned()
	case tensor.Bool:
		return e.bool()
	}
	return e.string()
}

func (e *elements) float32() error {
	if err := e.numeral(errNonNumber); err != nil {
		return err
	}
	f, ok := e.num.float32()
	if !ok {
		return e.tooBig(&e.num)
	}
	binary.LittleEndian.PutUint32(e.dst[4*e.count:], math.Float32bits(f))
	return nil
}

func (e *elements) float64() error {
	if err := e.numeral(errNonNumber); err != nil {
		return err
	}
	f, ok := e.num.float64()
	if !ok {
		return e.tooBig(&e.num)
	}
	binary.LittleEndian.PutUint64(e.dst[8*e.count:], math.Float64bits(f))
	return nil
}

func (e *elements) signed() error {
	if err := e.numeral(errNonSigned); err != nil {
		return err
	}
	v, ok := e.num.int64()
	if !ok {
		return unable("data", errNonSigned)
	}
	unused := 64 - 8*e.datatype.Size()
	if v<<unused>>unused != v {
		return e.outOfRange()
	}
	e.put(uint64(v))
	return nil
}

func (e *elements) unsigned() error {
	if err := e.numeral(errNonUnsigned); err != nil {
		return err
	}
	v, ok := e.num.uint64()
	if !ok {
		return unable("data", errNonUnsigned)
	}
	unused := 64 - 8*e.datatype.Size()
	if v<<unused>>unused != v {
		return e.outOfRange()
	}
	e.put(v)
	return nil
}

// put stores the low bytes of v, as many as the datatype has.
func (e *elements) put(v uint64) {
	switch e.datatype.Size() {
	case 1:
		e.dst[e.count] = byte(v)
	case 2:
		binary.LittleEndian.PutUint16(e.dst[2*e.count:], uint16(v))
	case 4:
		binary.LittleEndian.PutUint32(e.dst[4*e.count:], uint32(v))
	default:
		binary.LittleEndian.PutUint64(e.dst[8*e.count:], v)
	}
}

func (e *elements) bool() error {
	v, ok, err := e.boolean()
	if err != nil {
		return err
	}
	if !ok {
		return e.wrongKind(errNonBoolean)
	}
	e.dst[e.count] = 0
	if v {
		e.dst[e.count] = 1
	}
	return nil
}

func (e *elements) string() error {
	if e.peek() != '"' {
		if err := e.skip(); err != nil {
			return err
		}
		return errs.New(errs.InvalidJSON, "Unable to parse JSON bytes array: %s", errNonString)
	}
	at := len(e.dst)
	dst, err := e.grow(e.dst, 4)
	if err == nil {
		dst, err = e.appendStr(append(dst, 0, 0, 0, 0))
	}
	e.dst = dst
	if err != nil {
		return err
	}
	binary.LittleEndian.PutUint32(e.dst[at:], uint32(len(e.dst)-at-4))
	return nil
}

// numeral reads a number; wrong is the error text for a value of another kind.
func (e *elements) numeral(wrong string) error {
	switch e.peek() {
	case '"', '{', 't', 'f', 'n':
		return e.wrongKind(wrong)
	}
	return e.number(&e.num)
}

// wrongKind returns the error for a well-formed value of the wrong kind.
func (e *elements) wrongKind(what string) error {
	if err := e.skip(); err != nil {
		return err
	}
	return unable("data", what)
}

func (e *elements) outOfRange() error {
	return unable("data", string(e.num.text)+" does not fit "+e.datatype.String())
}

// The error texts of Triton's reader for a value of the wrong kind.
const (
	errNonNumber   = "attempt to access JSON non-number as double"
	errNonSigned   = "attempt to access JSON non-signed-integer as signed-integer"
	errNonUnsigned = "attempt to access JSON non-unsigned-integer as unsigned-integer"
	errNonBoolean  = "attempt to access JSON non-boolean as boolean"
	errNonString   = "attempt to access JSON non-string as string"
	errNonArray    = "attempt to access JSON non-array as array"
)

func unable(member, what string) error {
	return errs.New(errs.InvalidJSON, "Unable to parse '%s': %s", member, what)
}

// wrongCount returns Triton's error, which is the same for too few elements.
func wrongCount() error {
	return errs.New(errs.TensorDataCount, "Unable to parse 'data': Shape does not match true shape of 'data' field")
}
