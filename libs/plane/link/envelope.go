package link

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// envelopes passes envelopes through unchanged, in both directions. It leaves all other messages to protobuf, under
// whose name it is registered.
type envelopes struct{ encoding.CodecV2 }

func newCodec() envelopes { return envelopes{encoding.GetCodecV2(proto.Name)} }

// Marshal implements encoding.CodecV2.
func (c envelopes) Marshal(v any) (mem.BufferSlice, error) {
	if b, ok := v.(mem.BufferSlice); ok {
		return b, nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements encoding.CodecV2. The receiver must free an envelope's buffers.
func (c envelopes) Unmarshal(data mem.BufferSlice, v any) error {
	if b, ok := v.(*mem.BufferSlice); ok {
		data.Ref()
		*b = append((*b)[:0], data...)
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}
