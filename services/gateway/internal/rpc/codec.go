package rpc

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"

	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc/wire"
)

// codec reads inference requests into wire.Request, counts the parameters of
// loads first, and passes on replies that
// are encoded already; every other message it leaves to protobuf. It answers
// to protobuf's name, so clients see no difference.
type codec struct {
	encoding.CodecV2
	pool *tensor.Pool
}

func newCodec(pool *tensor.Pool) codec {
	return codec{CodecV2: encoding.GetCodecV2(proto.Name), pool: pool}
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch in := v.(type) {
	case *wire.Request:
		return wire.Decode(data, c.pool, in)
	case *counting:
		return in.read(data, c)
	}
	return c.CodecV2.Unmarshal(data, v)
}

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if b, ok := v.(mem.BufferSlice); ok {
		return b, nil
	}
	return c.CodecV2.Marshal(v)
}
