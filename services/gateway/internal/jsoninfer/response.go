package jsoninfer

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
)

// AppendResponse appends the JSON of the response p to the request id for the given model. For outputs that e
// wants as bytes it writes only their number; the caller sends the bytes after the JSON, in the order of the
// outputs. The memory that dst lacks is charged to the budget before it is allocated; the caller returns it.
func AppendResponse(dst []byte, id string, model infer.ModelRef, p *infer.Response, e *Envelope, b *memory.Account) ([]byte, error) {
	dst = append(dst, '{')
	if id != "" {
		var err error
		if dst, err = appendText(append(dst, `"id":`...), id, b); err != nil {
			return dst, err
		}
		dst = append(dst, ',')
	}
	dst = AppendString(append(dst, `"model_name":`...), model.Name)
	dst = strconv.AppendInt(append(dst, `,"model_version":"`...), model.Version, 10)
	dst = append(dst, '"')
	dst, err := appendParameters(dst, p.Parameters)
	if err != nil {
		return dst, err
	}
	dst = append(dst, `,"outputs":[`...)
	for i := range p.Outputs {
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst, err = appendOutput(dst, &p.Outputs[i], e.form(p.Outputs[i].Name), b); err != nil {
			return dst, err
		}
	}
	return append(dst, "]}"...), nil
}

func appendParameters(dst []byte, list []infer.Parameter) ([]byte, error) {
	if len(list) == 0 {
		return dst, nil
	}
	dst = append(dst, `,"parameters":{`...)
	for i, p := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		var err error
		if dst, err = appendValue(append(AppendString(dst, p.Key), ':'), &p); err != nil {
			return dst, err
		}
	}
	return append(dst, '}'), nil
}

// appendValue appends the value of a response parameter.
func appendValue(dst []byte, p *infer.Parameter) ([]byte, error) {
	switch v := p.Value.(type) {
	case bool:
		return strconv.AppendBool(dst, v), nil
	case int64:
		return strconv.AppendInt(dst, v, 10), nil
	case float64:
		return appendFloat(dst, v, 64), nil
	case string:
		return AppendString(dst, v), nil
	default:
		return dst, errs.New(errs.ExecutionFailed, "response parameter '%s' has type %T, which JSON has no form for", p.Key, v)
	}
}

func appendOutput(dst []byte, t *infer.Tensor, form OutputForm, b *memory.Account) ([]byte, error) {
	dst = AppendString(append(dst, `{"name":`...), t.Name)
	dst = append(append(append(dst, `,"datatype":"`...), t.Datatype.String()...), `","shape":[`...)
	for i, d := range t.Shape {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendInt(dst, d, 10)
	}
	dst = append(dst, ']')
	if form.Shared {
		return append(dst, '}'), nil
	}
	if form.Binary {
		dst = append(dst, `,"parameters":{"binary_data_size":`...)
		return append(strconv.AppendInt(dst, t.Data.Length, 10), "}}"...), nil
	}
	dst = append(dst, `,"data":[`...)
	dst, err := AppendData(dst, t, b)
	return append(dst, "]}"...), err
}

// pieceBytes is how many bytes of a tensor are formatted between two checks of the memory for their text.
const pieceBytes = 64 << 10

// textBytes estimates the maximum length of the text of an element of size bytes.
func textBytes(size int) int { return 4 + 3*size }

// AppendData appends the elements of t, separated by commas. The memory that dst
// lacks is charged to the budget.
func AppendData(dst []byte, t *infer.Tensor, b *memory.Account) ([]byte, error) {
	data, err := t.Data.Bytes()
	if err != nil {
		return dst, err
	}
	switch t.Datatype {
	case tensor.FP16, tensor.BF16:
		return dst, errs.New(errs.InvalidParameter,
			"sending %s data via JSON is not supported. Please use the binary data format for output", t.Datatype)
	case tensor.Bytes:
		return appendStrings(dst, t, data, b)
	}
	if size, ok := t.Shape.ByteSize(t.Datatype); !ok || size != int64(len(data)) {
		return dst, badOutput(t)
	}
	from := len(dst)
	size := t.Datatype.Size()
	for len(data) > 0 {
		piece := data[:min(len(data), pieceBytes)]
		data = data[len(piece):]
		if dst, err = reserve(dst, len(piece)/size*textBytes(size), b); err != nil {
			return dst, err
		}
		for ; len(piece) > 0; piece = piece[size:] {
			dst = append(appendElement(dst, t.Datatype, piece), ',')
		}
	}
	return dst[:max(from, len(dst)-1)], nil
}

// reserve makes space for n more bytes.
func reserve(dst []byte, n int, b *memory.Account) ([]byte, error) {
	if cap(dst)-len(dst) >= n {
		return dst, nil
	}
	room := max(n, len(dst)/4) // as append does
	if err := b.Retain(int64(len(dst) + room - cap(dst))); err != nil {
		return dst, err
	}
	return slices.Grow(dst, room), nil
}

func badOutput(t *infer.Tensor) error {
	return errs.New(errs.ExecutionFailed, "output tensor shape does not match size of output for '%s'", t.Name)
}

func appendStrings(dst []byte, t *infer.Tensor, data []byte, b *memory.Account) ([]byte, error) {
	n, ok := t.Shape.Elements()
	if !ok {
		return dst, badOutput(t)
	}
	from := len(dst)
	for ; n > 0; n-- {
		element, rest, err := tensor.CutBytes(data)
		if err != nil {
			return dst, badOutput(t)
		}
		if dst, err = appendText(dst, element, b); err != nil {
			return dst, err
		}
		dst = append(dst, ',')
		data = rest
	}
	return dst[:max(from, len(dst)-1)], nil
}

// escapePiece is how many bytes of a text are escaped between two checks of the memory for them, and escaped
// the maximum number of bytes that one of them becomes.
const (
	escapePiece = 4 << 10
	escaped     = 6
)

// appendText appends a text as a JSON string. The memory that dst lacks is charged.
func appendText[T string | []byte](dst []byte, text T, b *memory.Account) ([]byte, error) {
	for opened := false; !opened || len(text) > 0; opened = true {
		piece := text[:min(len(text), escapePiece)]
		text = text[len(piece):]
		var err error
		if dst, err = reserve(dst, escaped*len(piece)+len(`"",`), b); err != nil {
			return dst, err
		}
		if !opened {
			dst = append(dst, '"')
		}
		dst = appendEscaped(dst, piece)
	}
	return append(dst, '"'), nil
}

// appendElement appends the first element of data.
func appendElement(dst []byte, d tensor.Datatype, data []byte) []byte {
	le := binary.LittleEndian
	switch d {
	case tensor.FP32:
		return appendFloat(dst, float64(math.Float32frombits(le.Uint32(data))), 32)
	case tensor.FP64:
		return appendFloat(dst, math.Float64frombits(le.Uint64(data)), 64)
	case tensor.Bool:
		return strconv.AppendBool(dst, data[0] != 0)
	case tensor.Int8:
		return strconv.AppendInt(dst, int64(int8(data[0])), 10)
	case tensor.Int16:
		return strconv.AppendInt(dst, int64(int16(le.Uint16(data))), 10)
	case tensor.Int32:
		return strconv.AppendInt(dst, int64(int32(le.Uint32(data))), 10)
	case tensor.Int64:
		return strconv.AppendInt(dst, int64(le.Uint64(data)), 10)
	case tensor.Uint8:
		return strconv.AppendUint(dst, uint64(data[0]), 10)
	case tensor.Uint16:
		return strconv.AppendUint(dst, uint64(le.Uint16(data)), 10)
	case tensor.Uint32:
		return strconv.AppendUint(dst, uint64(le.Uint32(data)), 10)
	}
	return strconv.AppendUint(dst, le.Uint64(data), 10)
}

// appendFloat appends the shortest text that parses back to f. As in Triton, it cannot be mistaken for an
// integer, and NaN and the infinities are words that Python's reader accepts.
func appendFloat(dst []byte, f float64, bits int) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, "NaN"...)
	case math.IsInf(f, 1):
		return append(dst, "Infinity"...)
	case math.IsInf(f, -1):
		return append(dst, "-Infinity"...)
	}
	if abs := math.Abs(f); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		return trimExponent(strconv.AppendFloat(dst, f, 'e', -1, bits))
	}
	dst = strconv.AppendFloat(dst, f, 'f', -1, bits)
	if f == math.Trunc(f) {
		dst = append(dst, ".0"...)
	}
	return dst
}

// trimExponent removes the plus sign and the leading zero of the exponent, of at least two digits, at the end
// of text.
func trimExponent(text []byte) []byte {
	at := len(text) - 3
	for text[at] != '+' && text[at] != '-' {
		at--
	}
	from, exponent := at+1, at+1
	if text[at] == '+' {
		from = at
	}
	if text[exponent] == '0' {
		exponent++
	}
	return append(text[:from], text[exponent:]...)
}

// AppendString appends s as a JSON string. It escapes only what JSON requires; as in Triton, other bytes are
// unchanged even if they are not UTF-8.
func AppendString[T string | []byte](dst []byte, s T) []byte {
	return append(appendEscaped(append(dst, '"'), s), '"')
}

func appendEscaped[T string | []byte](dst []byte, s T) []byte {
	const hex = "0123456789ABCDEF"
	from := 0
	for i := range len(s) {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, `\n`...)
		case '\r':
			dst = append(dst, `\r`...)
		case '\t':
			dst = append(dst, `\t`...)
		case '\b':
			dst = append(dst, `\b`...)
		case '\f':
			dst = append(dst, `\f`...)
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(dst, s[from:]...)
}
