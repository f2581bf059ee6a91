package tensor

// Datatype is the type of a tensor's elements. Its numbers are those of the
// model configuration's DataType enum.
type Datatype uint8

// The datatypes of the inference protocol.
const (
	Invalid Datatype = iota
	Bool
	Uint8
	Uint16
	Uint32
	Uint64
	Int8
	Int16
	Int32
	Int64
	FP16
	FP32
	FP64
	Bytes
	BF16
	datatypeCount
)

// ParseDatatype reads a wire name such as FP32 or BYTES.
func ParseDatatype(name string) (Datatype, bool) {
	for d := Bool; d < datatypeCount; d++ {
		if d.String() == name {
			return d, true
		}
	}
	return Invalid, false
}

// Valid reports whether d is one of the protocol's datatypes.
func (d Datatype) Valid() bool { return d > Invalid && d < datatypeCount }

// String returns the wire name.
func (d Datatype) String() string {
	switch d {
	case Bool:
		return "BOOL"
	case Uint8:
		return "UINT8"
	case Uint16:
		return "UINT16"
	case Uint32:
		return "UINT32"
	case Uint64:
		return "UINT64"
	case Int8:
		return "INT8"
	case Int16:
		return "INT16"
	case Int32:
		return "INT32"
	case Int64:
		return "INT64"
	case FP16:
		return "FP16"
	case FP32:
		return "FP32"
	case FP64:
		return "FP64"
	case Bytes:
		return "BYTES"
	case BF16:
		return "BF16"
	}
	return "INVALID"
}

// ConfigName returns the spelling of the model configuration, such as
// TYPE_FP32 or TYPE_STRING.
func (d Datatype) ConfigName() string {
	if d == Bytes {
		return "TYPE_STRING"
	}
	return "TYPE_" + d.String()
}

// Size returns the bytes of one element; 0 for Bytes, whose elements vary.
func (d Datatype) Size() int {
	switch d {
	case Bool, Uint8, Int8:
		return 1
	case Uint16, Int16, FP16, BF16:
		return 2
	case Uint32, Int32, FP32:
		return 4
	case Uint64, Int64, FP64:
		return 8
	}
	return 0
}

// Datatypes lists the protocol's datatypes in the order of their numbers.
func Datatypes() []Datatype {
	var all []Datatype
	for d := Bool; d < datatypeCount; d++ {
		all = append(all, d)
	}
	return all
}
