package values

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	"github.com/nereid-serving/nereid/libs/client"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// Elements gives the first elements of a tensor as JSON values, up to limit
// of them, or all if it is negative. Numbers that JSON does not have are the
// strings NaN, Infinity and -Infinity; bytes that are no UTF-8 are replaced.
func Elements(t client.Tensor, limit int) ([]json.RawMessage, error) {
	out := []json.RawMessage{}
	for data := t.Data; len(data) > 0 && len(out) != limit; {
		element, rest, err := cut(t.Datatype, data)
		if err != nil {
			return nil, fmt.Errorf("output %s: %w", t.Name, err)
		}
		text, err := elementText(t.Datatype, element)
		if err != nil {
			return nil, fmt.Errorf("output %s: %w", t.Name, err)
		}
		out, data = append(out, text), rest
	}
	return out, nil
}

func cut(d tensor.Datatype, data []byte) (element, rest []byte, err error) {
	if d == tensor.Bytes {
		return tensor.CutBytes(data)
	}
	if len(data) < d.Size() {
		return nil, nil, fmt.Errorf("%d bytes are left of an element of %d", len(data), d.Size())
	}
	return data[:d.Size()], data[d.Size():], nil
}

func elementText(d tensor.Datatype, element []byte) (json.RawMessage, error) {
	if d == tensor.Bytes {
		return json.Marshal(string(element))
	}
	raw := rawOf(element)
	switch kindOf(d) {
	case signed:
		shift := 64 - 8*d.Size()
		return strconv.AppendInt(nil, int64(raw<<shift)>>shift, 10), nil
	case unsigned:
		return strconv.AppendUint(nil, raw, 10), nil
	case boolean:
		return strconv.AppendBool(nil, raw != 0), nil
	}
	return floatText(d, floatOf(d, raw)), nil
}

func floatText(d tensor.Datatype, f float64) json.RawMessage {
	switch {
	case math.IsNaN(f):
		return json.RawMessage(`"NaN"`)
	case math.IsInf(f, 1):
		return json.RawMessage(`"Infinity"`)
	case math.IsInf(f, -1):
		return json.RawMessage(`"-Infinity"`)
	case d == tensor.FP64:
		return strconv.AppendFloat(nil, f, 'g', -1, 64)
	}
	return strconv.AppendFloat(nil, f, 'g', -1, 32)
}
