package rpc

import (
	"math"

	"google.golang.org/grpc/mem"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/splice"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// borrowFrom is the size in bytes from which an output is sent from where it
// lies. A smaller one is cheaper to copy.
const borrowFrom = 32 << 10

// message is what package wire encodes.
type message interface {
	Size() (int, error)
	Bulk(least int64) int
	Append(b []byte, least int64) ([]byte, []splice.Tensor)
}

// encode makes the bytes of m, which gRPC gives back when they are sent. Large
// outputs among them are borrowed, with references of their own, and stay charged
// to the budget until then: a client may grant no window for them.
func (c *call) encode(m message) (mem.BufferSlice, error) {
	s := c.service
	n, err := m.Size()
	if err != nil {
		return nil, err
	}
	if n > math.MaxInt32 {
		return nil, errs.New(errs.ResponseTooLarge, "Response has byte size %d which exceeds gRPC's byte size limit %d.", n, math.MaxInt32)
	}
	own, gaps := s.own(n-m.Bulk(borrowFrom)), []splice.Tensor(nil)
	if *own, gaps = m.Append((*own)[:0], borrowFrom); len(gaps) == 0 {
		return mem.BufferSlice{mem.NewBuffer(own, &s.replies)}, nil
	}
	for i := range gaps {
		gaps[i].Data = c.borrow(gaps[i].Data)
	}
	return splice.Join(mem.NewBuffer(own, &s.replies), gaps), nil
}

// borrow returns a reference for gRPC, beside the response's own, that keeps its
// bytes charged.
func (c *call) borrow(r tensor.Ref) tensor.Ref {
	data, _ := r.Bytes() // which was read for its size
	r.Retain()
	release := c.Detach(r.Length)
	return tensor.InBuffer(tensor.Wrap(data, r.Mapped(), func(*tensor.Buffer) {
		release()
		r.Release()
	}), 0, r.Length)
}

// own is memory for n bytes that are encoded. gRPC does not give back small
// ones.
func (s *service) own(n int) *[]byte {
	if mem.IsBelowBufferPoolingThreshold(n) {
		b := make([]byte, n)
		return &b
	}
	return s.replies.Get(n)
}
