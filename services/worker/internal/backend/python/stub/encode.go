package stub

import (
	"encoding/json"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// AppendText appends a JSON string.
func AppendText(to []byte, text string) []byte {
	for i := range len(text) {
		if b := text[i]; b < ' ' || b == '"' || b == '\\' || b >= utf8.RuneSelf {
			quoted, err := json.Marshal(text)
			if err != nil { // there is no string that it refuses
				quoted = []byte(`""`)
			}
			return append(to, quoted...)
		}
	}
	to = append(append(to, '"'), text...)
	return append(to, '"')
}

// Array separates the elements of a list, or the members of an object.
type Array struct{ begun bool }

// Next appends what stands before the next element.
func (a *Array) Next(to []byte) []byte {
	if !a.begun {
		a.begun = true
		return to
	}
	return append(to, ',')
}

// AppendParameters appends an object of parameters.
func AppendParameters(to []byte, list []infer.Parameter) []byte {
	to = append(to, '{')
	var members Array
	for i := range list {
		to = AppendText(members.Next(to), list[i].Key)
		to = appendValue(append(to, ':'), list[i].Value)
	}
	return append(to, '}')
}

func appendValue(to []byte, value any) []byte {
	switch v := value.(type) {
	case bool:
		return strconv.AppendBool(to, v)
	case int64:
		return strconv.AppendInt(to, v, 10)
	case float64:
		return AppendFloat(to, v)
	case string:
		return AppendText(to, v)
	}
	return append(to, "null"...)
}

// AppendFloat appends a number as Python reads it back.
func AppendFloat(to []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(to, "NaN"...)
	case math.IsInf(f, 0):
		if f < 0 {
			to = append(to, '-')
		}
		return append(to, "Infinity"...)
	}
	start := len(to)
	to = strconv.AppendFloat(to, f, 'g', -1, 64)
	for _, b := range to[start:] {
		if b == '.' || b == 'e' {
			return to
		}
	}
	return append(to, ".0"...) // else it is an int there
}

// appendShape appends dimensions.
func appendShape(to []byte, shape tensor.Shape) []byte {
	to = append(to, '[')
	for i, d := range shape {
		if i > 0 {
			to = append(to, ',')
		}
		to = strconv.AppendInt(to, d, 10)
	}
	return append(to, ']')
}
