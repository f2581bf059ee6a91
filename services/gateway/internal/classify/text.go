package classify

import (
	"encoding/binary"
	"math"
	"strconv"

	"github.com/nereid-serving/nereid/libs/tensor"
)

// appendClass appends "score:class" or, if the class has a non-empty label, "score:class:label". data starts
// with the row.
func appendClass(dst []byte, d tensor.Datatype, data []byte, class int, labels []string) []byte {
	dst = append(appendScore(dst, d, data[class*d.Size():]), ':')
	dst = strconv.AppendInt(dst, int64(class), 10)
	if class < len(labels) && labels[class] != "" {
		dst = append(append(dst, ':'), labels[class]...)
	}
	return dst
}

// appendScore appends the first value of data: integers in full, other numbers with six decimals and without an
// exponent, as std::to_string formats them.
func appendScore(dst []byte, d tensor.Datatype, data []byte) []byte {
	le := binary.LittleEndian
	switch d {
	case tensor.FP32:
		return appendFloat(dst, float64(math.Float32frombits(le.Uint32(data))))
	case tensor.FP64:
		return appendFloat(dst, math.Float64frombits(le.Uint64(data)))
	case tensor.Uint8, tensor.Uint16, tensor.Uint32, tensor.Uint64:
		return strconv.AppendUint(dst, unsigned(d, data), 10)
	}
	return strconv.AppendInt(dst, signed(d, data), 10)
}

func appendFloat(dst []byte, f float64) []byte {
	if !math.IsNaN(f) && !math.IsInf(f, 0) {
		return strconv.AppendFloat(dst, f, 'f', 6, 64)
	}
	if math.Signbit(f) {
		dst = append(dst, '-')
	}
	if math.IsNaN(f) {
		return append(dst, "nan"...)
	}
	return append(dst, "inf"...)
}
