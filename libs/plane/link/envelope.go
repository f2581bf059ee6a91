package link

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// envelopes passes envelopes on as they are, in both directions; every other
// message it leaves to protobuf, to whose name it answers.
type envelopes struct{ encoding.CodecV2 }

func newCodec() envelopes { return envelopes{encoding.GetCodecV2(proto.Name)} }

// Marshal implements encoding.CodecV2.
func (c envelopes) Marshal(v any) (mem.BufferSlice, error) {
	if b, ok := v.(mem.BufferSlice); ok {
		return b, nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements encoding.CodecV2. An envelope's buffers are the
// receiver's to free.
func (c envelopes) Unmarshal(data mem.BufferSlice, v any) error {
	if b, ok := v.(*mem.BufferSlice); ok {
		data.Ref()
		*b = append((*b)[:0], data...)
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}
