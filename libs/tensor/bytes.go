package tensor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// Errors of BYTES tensors. The edges put the tensor's name into the message.
var (
	// ErrIncompleteLength is a length indicator cut off by the end.
	ErrIncompleteLength = errors.New("incomplete string length indicator")
	// ErrIncompleteString is an element cut off by the end.
	ErrIncompleteString = errors.New("incomplete string data")
)

// IncompleteError describes a BYTES tensor that ends within an element or its length.
type IncompleteError struct {
	// Err is ErrIncompleteLength or ErrIncompleteString.
	Err error
	// Want and Have are in bytes.
	Want, Have int64
}

// Error names what is incomplete and the sizes.
func (e *IncompleteError) Error() string {
	return fmt.Sprintf("%v: want %d bytes, have %d", e.Err, e.Want, e.Have)
}

// Unwrap returns Err.
func (e *IncompleteError) Unwrap() error { return e.Err }

const lengthBytes = 4

// CountBytes walks a BYTES tensor (each element a 4-byte little-endian length
// and as many bytes) and returns its number of elements. It stops after the first
// element beyond want, so that a tensor with too many costs no more than one with
// the right number. It allocates nothing.
func CountBytes(data []byte, want int64) (int64, error) {
	n := int64(0)
	for len(data) > 0 && n <= want {
		_, rest, err := CutBytes(data)
		if err != nil {
			return n, err
		}
		data = rest
		n++
	}
	return n, nil
}

// CutBytes splits the first element off a BYTES tensor. The element shares
// the tensor's memory. An error is an *IncompleteError.
func CutBytes(data []byte) (element, rest []byte, err error) {
	if len(data) < lengthBytes {
		return nil, nil, &IncompleteError{ErrIncompleteLength, lengthBytes, int64(len(data))}
	}
	n, have := int64(binary.LittleEndian.Uint32(data)), int64(len(data)-lengthBytes)
	if n > have {
		return nil, nil, &IncompleteError{ErrIncompleteString, n, have}
	}
	end := lengthBytes + int(n)
	return data[lengthBytes:end:end], data[end:], nil
}

// AppendBytes appends one element to a BYTES tensor. The element is shorter
// than 4 GiB; the edges bound it long before.
func AppendBytes[T []byte | string](data []byte, element T) []byte {
	if uint64(len(element)) > math.MaxUint32 {
		panic("tensor: BYTES element of 4 GiB or more")
	}
	data = binary.LittleEndian.AppendUint32(data, uint32(len(element)))
	return append(data, element...)
}
