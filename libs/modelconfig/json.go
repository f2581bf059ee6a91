package modelconfig

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"math"
	"slices"
	"strconv"

	"google.golang.org/protobuf/reflect/protoreflect"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// JSON writes c as the model configuration endpoint shows it. Fields have
// their names of the schema and its order. Scalars, lists and maps are written
// when they are empty too; messages and members of a oneof only when they are
// set. Enum values are names and all integers are numbers, where protobuf's
// own JSON would make strings of those with 64 bits. Map keys are sorted.
//
// This is Triton's response, byte for byte, but for the dims of a sequence
// state's initial_state and of a graph_spec, which Triton leaves as strings,
// the order of maps, which it leaves open, and how control characters and line
// separators in texts are escaped.
func JSON(c *inference.ModelConfig) []byte { return appendMessage(nil, c.ProtoReflect()) }

func appendMessage(b []byte, m protoreflect.Message) []byte {
	fields := m.Descriptor().Fields()
	b = append(b, '{')
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.HasPresence() && !m.Has(f) {
			continue
		}
		if b[len(b)-1] != '{' {
			b = append(b, ',')
		}
		b = append(appendString(b, string(f.Name())), ':')
		b = appendField(b, f, m.Get(f))
	}
	return append(b, '}')
}

func appendField(b []byte, f protoreflect.FieldDescriptor, v protoreflect.Value) []byte {
	switch {
	case f.IsList():
		return appendList(b, f, v.List())
	case f.IsMap():
		return appendMap(b, f.MapValue(), v.Map())
	}
	return appendValue(b, f, v)
}

func appendList(b []byte, f protoreflect.FieldDescriptor, list protoreflect.List) []byte {
	b = append(b, '[')
	for i := range list.Len() {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendValue(b, f, list.Get(i))
	}
	return append(b, ']')
}

func appendMap(b []byte, value protoreflect.FieldDescriptor, m protoreflect.Map) []byte {
	var keys []protoreflect.MapKey
	for k := range m.Range {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, compareKeys)
	b = append(b, '{')
	for i, k := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendString(b, k.String()), ':')
		b = appendValue(b, value, m.Get(k))
	}
	return append(b, '}')
}

// compareKeys orders the two kinds of keys that the schema has.
func compareKeys(a, b protoreflect.MapKey) int {
	if x, ok := a.Interface().(uint64); ok {
		return cmp.Compare(x, b.Uint())
	}
	return cmp.Compare(a.String(), b.String())
}

func appendValue(b []byte, f protoreflect.FieldDescriptor, v protoreflect.Value) []byte {
	switch x := v.Interface().(type) {
	case protoreflect.Message:
		return appendMessage(b, x)
	case protoreflect.EnumNumber:
		if known := f.Enum().Values().ByNumber(x); known != nil {
			return appendString(b, string(known.Name()))
		}
		return strconv.AppendInt(b, int64(x), 10)
	case bool:
		return strconv.AppendBool(b, x)
	case int32, int64:
		return strconv.AppendInt(b, v.Int(), 10)
	case uint32, uint64:
		return strconv.AppendUint(b, v.Uint(), 10)
	case float32:
		return appendFloat(b, float64(x), 32)
	case float64:
		return appendFloat(b, x, 64)
	case []byte:
		return appendString(b, base64.StdEncoding.EncodeToString(x))
	}
	return appendString(b, v.String())
}

// appendFloat writes the shortest number that reads back as x, and the three
// values that are no JSON numbers as protobuf does.
func appendFloat(b []byte, x float64, bits int) []byte {
	switch {
	case math.IsNaN(x):
		return append(b, `"NaN"`...)
	case math.IsInf(x, 1):
		return append(b, `"Infinity"`...)
	case math.IsInf(x, -1):
		return append(b, `"-Infinity"`...)
	}
	return strconv.AppendFloat(b, x, 'g', -1, bits)
}

func appendString(b []byte, s string) []byte {
	buffer := bytes.NewBuffer(b)
	encoder := json.NewEncoder(buffer)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(s) // a string has no error
	return bytes.TrimSuffix(buffer.Bytes(), []byte("\n"))
}
