package tensor

import (
	"math"
	"math/bits"
	"slices"
	"strconv"
)

// Shape is a tensor's dimensions. In configurations and metadata -1 is a
// dimension of any size; a tensor's own shape has none. The empty shape is a
// scalar.
type Shape []int64

// Elements returns the product of the dimensions (1 for a scalar). It is
// false if a dimension is negative or the product of the others than 0 exceeds
// an int64, so that sizes are known to be sane before anything is allocated.
func (s Shape) Elements() (int64, bool) {
	n := uint64(1)
	zero := false
	for _, d := range s {
		if d < 0 {
			return 0, false
		}
		if d == 0 {
			zero = true
			continue
		}
		hi, lo := bits.Mul64(n, uint64(d))
		if hi != 0 || lo > math.MaxInt64 {
			return 0, false
		}
		n = lo
	}
	if zero {
		return 0, true
	}
	return int64(n), true
}

// ByteSize returns the bytes that a tensor of this shape and datatype takes;
// false if that is unknown (Bytes), negative or too large.
func (s Shape) ByteSize(d Datatype) (int64, bool) {
	n, ok := s.Elements()
	size := int64(d.Size())
	if !ok || size == 0 || n > math.MaxInt64/size {
		return 0, false
	}
	return n * size, true
}

// Equal reports whether both shapes have the same dimensions.
func (s Shape) Equal(t Shape) bool { return slices.Equal(s, t) }

// Admits reports whether a tensor of shape t fits the pattern s, in which -1
// stands for any size.
func (s Shape) Admits(t Shape) bool {
	if len(s) != len(t) {
		return false
	}
	for i, d := range s {
		if t[i] < 0 || (d != -1 && d != t[i]) {
			return false
		}
	}
	return true
}

// Fixed reports whether no dimension is variable.
func (s Shape) Fixed() bool { return !slices.ContainsFunc(s, func(d int64) bool { return d < 0 }) }

// Prepend returns a new shape with d before s's dimensions.
func (s Shape) Prepend(d int64) Shape { return append(Shape{d}, s...) }

// AppendReshaped appends the pattern to, with its variable dimensions taken in order from
// shape, which fits the pattern from. The patterns have equally many variable dimensions.
func AppendReshaped(dst, from, to, shape Shape) Shape {
	next := 0
	for _, d := range to {
		if d >= 0 {
			dst = append(dst, d)
			continue
		}
		for from[next] >= 0 {
			next++
		}
		dst = append(dst, shape[next])
		next++
	}
	return dst
}

// String writes the shape as in Triton's messages: [1,16].
func (s Shape) String() string {
	b := append(make([]byte, 0, 24), '[')
	for i, d := range s {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, d, 10)
	}
	return string(append(b, ']'))
}
