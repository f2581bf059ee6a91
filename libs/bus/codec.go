package bus

import nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"

// Codec encodes and decodes values. Its functions are called concurrently. Encode gives equal
// bytes for equal values.
type Codec[T any] struct {
	// Encode returns bytes that the caller may keep.
	Encode func(T) ([]byte, error)
	// Decode must not keep its argument.
	Decode func([]byte) (T, error)
}

// Values is the codec of Nereid's bucket values: JSON that people can read in
// the store, in which fields that this release does not know are skipped. See
// [nereidv1.MarshalValue]. T is a pointer to a generated message.
func Values[T nereidv1.Value]() Codec[T] {
	return Codec[T]{
		Encode: func(value T) ([]byte, error) { return nereidv1.MarshalValue(value) },
		Decode: func(data []byte) (T, error) {
			var none T
			value := none.ProtoReflect().Type().New().Interface().(T)
			if err := nereidv1.UnmarshalValue(data, value); err != nil {
				return none, err
			}
			return value, nil
		},
	}
}
