package values

import (
	"encoding/binary"
	"math"

	"github.com/nereid-serving/nereid/libs/tensor"
)

// kind is how a datatype's elements are written.
type kind int

const (
	floating kind = iota
	signed
	unsigned
	boolean
	text
)

func kindOf(d tensor.Datatype) kind {
	switch d {
	case tensor.Int8, tensor.Int16, tensor.Int32, tensor.Int64:
		return signed
	case tensor.Uint8, tensor.Uint16, tensor.Uint32, tensor.Uint64:
		return unsigned
	case tensor.Bool:
		return boolean
	case tensor.Bytes:
		return text
	}
	return floating
}

// appendRaw appends the low size bytes of raw.
func appendRaw(data []byte, raw uint64, size int) []byte {
	var word [8]byte
	binary.LittleEndian.PutUint64(word[:], raw)
	return append(data, word[:size]...)
}

// rawOf reads an element of up to 8 bytes.
func rawOf(element []byte) uint64 {
	var word [8]byte
	copy(word[:], element)
	return binary.LittleEndian.Uint64(word[:])
}

// floatBits gives a number the bits of a datatype, rounded to nearest.
func floatBits(d tensor.Datatype, f float64) uint64 {
	switch d {
	case tensor.FP64:
		return math.Float64bits(f)
	case tensor.FP16:
		return uint64(half(f))
	case tensor.BF16:
		bits := math.Float32bits(float32(f))
		if f != f { //nolint:gocritic // the test for NaN, which rounding could lose
			return uint64(bits>>16 | 0x40)
		}
		return uint64((bits + 0x7fff + bits>>16&1) >> 16)
	}
	return uint64(math.Float32bits(float32(f)))
}

// floatOf is the number that bits of a datatype stand for.
func floatOf(d tensor.Datatype, raw uint64) float64 {
	switch d {
	case tensor.FP64:
		return math.Float64frombits(raw)
	case tensor.FP16:
		return unhalf(uint16(raw))
	case tensor.BF16:
		return float64(math.Float32frombits(uint32(raw) << 16))
	}
	return float64(math.Float32frombits(uint32(raw)))
}

// Parts of a half-precision number.
const (
	halfSign     = 0x8000
	halfInfinity = 0x7c00
	halfMantissa = 0x3ff
	// halfMax is where rounding goes to infinity.
	halfMax = 65520
)

// half rounds to half precision, ties to even.
func half(f float64) uint16 {
	sign := uint16(0)
	if math.Signbit(f) {
		sign = halfSign
	}
	f = math.Abs(f)
	switch {
	case math.IsNaN(f):
		return sign | halfInfinity | 0x200
	case f >= halfMax:
		return sign | halfInfinity
	case f == 0:
		return sign
	}
	_, exponent := math.Frexp(f)
	exponent = max(exponent-1, -14)
	// The significand counts in units of the last place: 2^(exponent-10). One
	// that rounds up to the next power carries into the exponent by addition.
	units := uint16(math.RoundToEven(math.Ldexp(f, 10-exponent)))
	return sign | (uint16(exponent+14)<<10 + units)
}

func unhalf(h uint16) float64 {
	mantissa, exponent := float64(h&halfMantissa), int(h&halfInfinity)>>10
	sign := 1.0
	if h&halfSign != 0 {
		sign = -1
	}
	switch {
	case exponent == 31 && mantissa != 0:
		return math.NaN()
	case exponent == 31:
		return math.Inf(int(sign))
	case exponent == 0:
		return sign * math.Ldexp(mantissa, -24)
	}
	return sign * math.Ldexp(mantissa+1024, exponent-25)
}
