package rpc

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc/wire"
)

// codec decompresses messages, reads inference requests into wire.Request, counts
// the parameters of loads first, and leaves every other message to protobuf. Replies
// are encoded already. It has protobuf's name, so that
// clients see no difference.
type codec struct {
	encoding.CodecV2
	pool   *tensor.Pool
	budget *core.Budget // may be nil
	limit  int64        // bytes of a message after decompression
}

func newCodec(pool *tensor.Pool, b *core.Budget, limit int) codec {
	return codec{CodecV2: encoding.GetCodecV2(proto.Name), pool: pool, budget: b, limit: b.Cap(copies*int64(limit)) / copies}
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	in, ok := v.(*compressedMessage)
	if ok {
		v = in.message
	}
	if mark := compression(data); mark != 0 {
		source := data.Reader()
		defer source.Close()
		r, err := decompressor(mark, source)
		if err != nil {
			return fmt.Errorf("decompress the message: %w", err)
		}
		p, err := c.decompress(r)
		if ok && errs.Classified(err) {
			in.refusal = err
			return nil
		}
		if err != nil {
			return err
		}
		defer p.release()
		data = p.data
	}
	switch m := v.(type) {
	case *wire.Request:
		return wire.Decode(data, c.pool, m)
	case *counting:
		return m.read(data, c)
	}
	return c.CodecV2.Unmarshal(data, v)
}

// Marshal implements encoding.CodecV2.
func (codec) Marshal(v any) (mem.BufferSlice, error) {
	return v.(mem.BufferSlice), nil
}
