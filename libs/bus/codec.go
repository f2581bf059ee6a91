package bus

import (
	"bytes"
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Codec turns values into bytes and back. Its functions are called
// concurrently. Encode gives equal bytes for equal values.
type Codec[T any] struct {
	// Encode returns bytes that the caller may keep.
	Encode func(T) ([]byte, error)
	// Decode must not keep its argument.
	Decode func([]byte) (T, error)
}

// ProtoJSON is the codec of a protobuf message as JSON that people can read
// in the store. Fields that this release does not know are skipped, so that it
// reads what the next release writes. T is a pointer to a generated message.
func ProtoJSON[T proto.Message]() Codec[T] {
	read := protojson.UnmarshalOptions{DiscardUnknown: true}
	return Codec[T]{
		Encode: encodeProto[T],
		Decode: func(data []byte) (T, error) {
			var none T
			value := none.ProtoReflect().Type().New().Interface().(T)
			if err := read.Unmarshal(data, value); err != nil {
				return none, fmt.Errorf("decode %s: %w", value.ProtoReflect().Descriptor().FullName(), err)
			}
			return value, nil
		},
	}
}

func encodeProto[T proto.Message](value T) ([]byte, error) {
	data, err := protojson.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", value.ProtoReflect().Descriptor().FullName(), err)
	}
	// protojson adds spaces at random so that nobody relies on its bytes.
	var out bytes.Buffer
	if err := json.Compact(&out, data); err != nil {
		return nil, fmt.Errorf("compact %s: %w", value.ProtoReflect().Descriptor().FullName(), err)
	}
	return out.Bytes(), nil
}
