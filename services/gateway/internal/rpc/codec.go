package rpc

import (
	"context"
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelfiles"
	"github.com/nereid-serving/nereid/libs/protoscan"
	"github.com/nereid-serving/nereid/libs/tensor"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc/transport"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc/wire"
)

// codec decompresses messages, decodes inference requests into wire.Request, and leaves all other messages to
// protobuf. It charges what a message becomes to the account of its call before it decodes. Replies are already
// encoded. It has protobuf's name, so that clients see no difference.
type codec struct {
	encoding.CodecV2
	pool  *tensor.Pool
	limit int64 // maximum size of a message in bytes after decompression
}

func newCodec(pool *tensor.Pool, b *memory.Budget, limit int) codec {
	return codec{CodecV2: encoding.GetCodecV2(proto.Name), pool: pool, limit: b.Cap(copies*int64(limit)) / copies}
}

// received is a message that a call receives. The codec stores a refusal in it, because gRPC would drop its
// reason.
type received struct {
	ctx     context.Context // of the call
	message any
	account *memory.Account // of the call
	ledger  *transport.Stream
	refusal error
}

// from receives the message through decode, which is gRPC's. only says that it is the call's single message.
func (in *received) from(ctx context.Context, decode func(any) error, only bool) error {
	in.ctx = ctx
	in.ledger.Await(only)
	if err := decode(in); err != nil {
		return err
	}
	return in.refusal
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	in, ok := v.(*received)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	in.refusal = nil
	charged := in.ledger.Deliver(wireLength(data))
	err := c.receive(data, in)
	in.ledger.Release(charged)
	if errs.Classified(err) {
		in.refusal, err = err, nil
	}
	return err
}

func (c codec) receive(data mem.BufferSlice, in *received) error {
	if isProbe(in.message) { // probes are answered even while the budget is exceeded
		in = &received{ctx: in.ctx, message: in.message, ledger: in.ledger}
	}
	defer in.account.EndCoding()
	if mark := compression(data); mark != 0 {
		source := data.Reader()
		defer source.Close()
		r, err := decompressor(mark, source)
		if err != nil {
			return fmt.Errorf("decompress the message: %w", err)
		}
		p, err := c.decompress(r, in, c.most(in.message))
		if err != nil {
			return err
		}
		defer p.release()
		data = p.data
	}
	if m, ok := in.message.(*wire.Request); ok {
		return wire.Decode(in.ctx, data, c.pool, in.account, m)
	}
	if err := in.bound(data); err != nil {
		return err
	}
	return c.CodecV2.Unmarshal(data, in.message)
}

// A message that is not an inference names models and settings and is small; only a load may carry files.
// growth is the maximum factor by which a small message grows in memory over its size on the wire: an empty
// string takes two bytes there and a string header here.
const (
	maxControlMessage = 64 << 10
	maxProbe          = 4 << 10 // covered by the charge of the probe's call
	growth            = 64
	parameterBytes    = 512
)

// most returns how many bytes a message may have after decompression.
func (c codec) most(message any) int64 {
	switch message.(type) {
	case *wire.Request, *inference.RepositoryModelLoadRequest, *inference.RepositoryModelUnloadRequest:
		return c.limit
	}
	if isProbe(message) {
		return min(c.limit, maxProbe)
	}
	return min(c.limit, maxControlMessage)
}

// bound refuses a message that is larger than its method needs, and charges what it becomes.
func (in *received) bound(data mem.BufferSlice) error {
	n, becomes := int64(data.Len()), int64(0)
	if isProbe(in.message) {
		if n > maxProbe {
			return errs.New(errs.BodyTooLarge, "the message has %d bytes: a probe has at most %d", n, maxProbe)
		}
		return nil
	}
	switch in.message.(type) {
	case *inference.RepositoryModelLoadRequest, *inference.RepositoryModelUnloadRequest:
		if controlParametersOf(data) > core.MaxControlParameters {
			return modelfiles.TooManyLoadFiles("")
		}
		becomes = n + core.MaxControlParameters*parameterBytes
	default:
		if n > maxControlMessage {
			return errs.New(errs.BodyTooLarge, "the message has %d bytes: a call that is no inference has at most %d", n, maxControlMessage)
		}
		becomes = growth * n
	}
	return in.account.Retain(min(becomes, growth*n))
}

// isProbe reports whether a message is a health or readiness probe.
func isProbe(message any) bool {
	switch message.(type) {
	case *inference.ServerLiveRequest, *inference.ServerReadyRequest, *inference.ModelReadyRequest, *grpc_health_v1.HealthCheckRequest:
		return true
	}
	return false
}

// Marshal implements encoding.CodecV2.
func (codec) Marshal(v any) (mem.BufferSlice, error) {
	return v.(mem.BufferSlice), nil
}

// controlParameters is the field number of the parameters of a load or unload.
const controlParameters = 3

// controlParametersOf counts a message's parameters, up to the point where it cannot be parsed.
func controlParametersOf(data mem.BufferSlice) (n int) {
	for c := protoscan.New(data); c.Left() > 0; {
		f, err := c.Field()
		if err == nil {
			err = c.SkipField(f)
		}
		if err != nil {
			return n // whoever decodes it reports the error
		}
		if f == protoscan.Text(controlParameters) {
			n++
		}
	}
	return n
}
