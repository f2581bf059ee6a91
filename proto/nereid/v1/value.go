package nereidv1

import (
	"bytes"
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Schema is the schema of bucket values that this release writes, and the
// highest that it reads. See state.proto for when it grows.
const Schema = 1

// Value is a bucket's value: [ModelValue], [AssignmentValue], [WorkerValue],
// [InstancesValue], [ServiceValue], [PoolValue], [LeaderValue], [AttachedValue],
// [SettingValue], [PolicyValue] or [QuotaValue].
type Value interface {
	proto.Message
	GetSchema() uint32
}

// MarshalValue encodes a value as its bucket stores it. Equal values give
// equal bytes, so that a writer can tell that nothing has changed. It fails
// for a value that does not state [Schema] and for strings that are not UTF-8.
func MarshalValue(v Value) ([]byte, error) {
	if v.GetSchema() != Schema {
		return nil, fmt.Errorf("encode %s: schema is %d, this release writes %d", name(v), v.GetSchema(), Schema)
	}
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", name(v), err)
	}
	// protojson varies its blanks on purpose.
	var compact bytes.Buffer
	if err := json.Compact(&compact, text); err != nil {
		return nil, fmt.Errorf("encode %s: %w", name(v), err)
	}
	return compact.Bytes(), nil
}

// UnmarshalValue decodes a value that MarshalValue of this or the neighboring
// releases has encoded into v, which it empties first. Unknown fields are
// ignored. It fails, and v is not to be used, if the bytes are not such a
// value, if its schema is missing, or if the schema is higher than [Schema].
func UnmarshalValue(data []byte, v Value) error {
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, v); err != nil {
		return fmt.Errorf("decode %s: %w", name(v), err)
	}
	if v.GetSchema() == 0 {
		return fmt.Errorf("decode %s: the value states no schema", name(v))
	}
	if v.GetSchema() > Schema {
		return fmt.Errorf("decode %s: schema %d is newer than %d, the highest that this release reads: upgrade it",
			name(v), v.GetSchema(), Schema)
	}
	return nil
}

func name(v Value) string { return string(v.ProtoReflect().Descriptor().Name()) }
