package rpc

import (
	"context"
	"math"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/splice"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc/transport"
)

// borrowFrom is the size in bytes from which an output is sent without a copy. Smaller outputs are cheaper to
// copy.
const borrowFrom = 32 << 10

// message is what package wire encodes.
type message interface {
	Size() (int, error)
	Bulk(least int64) int
	Append(b []byte, least int64) ([]byte, []splice.Tensor)
}

// encode encodes m. The bytes are charged to the budget until gRPC has sent them, since a client may grant no
// window for them. Large outputs are borrowed, with references of their own.
func (c *call) encode(ctx context.Context, m message) (mem.BufferSlice, error) {
	n, err := m.Size()
	if err != nil {
		return nil, err
	}
	if n > math.MaxInt32 {
		return nil, errs.New(errs.ResponseTooLarge, "Response has byte size %d which exceeds gRPC's byte size limit %d.", n, math.MaxInt32)
	}
	replies := &c.service.replies
	own := replies.Get(n - m.Bulk(borrowFrom))
	var gaps []splice.Tensor
	*own, gaps = m.Append((*own)[:0], borrowFrom)
	ledger, charge := c.ledger(), int64(cap(*own))
	buffer := mem.NewBuffer(own, replies)
	if len(gaps) > 0 && compresses(ctx) {
		charge = max(charge, int64(n)) // gRPC copies all of it
	}
	if err := ledger.Respond(charge); err != nil {
		buffer.Free()
		return nil, err
	}
	if len(gaps) == 0 {
		return mem.BufferSlice{buffer}, nil
	}
	for i := range gaps {
		gaps[i].Data = c.borrow(gaps[i].Data)
	}
	return splice.Join(buffer, gaps), nil
}

func (c *call) ledger() *transport.Stream {
	if c.stream != nil {
		return c.stream.ledger
	}
	return &c.ticket.ledger
}

// compresses reports whether gRPC compresses the responses of a call.
func compresses(ctx context.Context) bool {
	stream, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ SendCompress() string })
	return ok && stream.SendCompress() != "" && stream.SendCompress() != encoding.Identity
}

// borrow returns a reference for gRPC, in addition to the response's own, that keeps its bytes charged.
func (c *call) borrow(t tensor.Ref) tensor.Ref {
	data, _ := t.Bytes() // was already read for its size
	t.Retain()
	release := c.Detach(t.Length)
	return tensor.InBuffer(tensor.Wrap(data, t.Mapped(), func(*tensor.Buffer) {
		release()
		t.Release()
	}), 0, t.Length)
}

// reply encodes a reply of generated code, as encode does.
func (s *service) reply(ctx context.Context, m any) (mem.BufferSlice, error) {
	reply := m.(proto.Message)
	n := proto.Size(reply)
	own := s.replies.Get(n)
	encoded, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend((*own)[:0], reply)
	if err != nil {
		return nil, err
	}
	*own = encoded
	buffer := mem.NewBuffer(own, &s.replies)
	if err := ticketOf(ctx).ledger.Respond(int64(cap(encoded))); err != nil {
		buffer.Free()
		return nil, err
	}
	return mem.BufferSlice{buffer}, nil
}
