package rpc

import (
	"math"
	"runtime"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc/wire"
)

// lendFrom is the size in bytes from which an output is sent from where it
// lies. A smaller one is cheaper to copy.
const lendFrom = 32 << 10

// message is what package wire encodes.
type message interface {
	Size() (int, error)
	Bulk(least int64) int
	Append(b []byte, least int64) ([]byte, []wire.Gap)
}

// encodeAnswer encodes the answer of an inference, and counts the time.
func (s *service) encodeAnswer(m message) (mem.BufferSlice, error) {
	begun := time.Now()
	encoded, err := s.encode(m)
	s.answered(time.Since(begun))
	return encoded, err
}

// encode makes the bytes of m, which gRPC gives back when they are sent. Large
// outputs among them are lent, with references of their own.
func (s *service) encode(m message) (mem.BufferSlice, error) {
	n, err := m.Size()
	if err != nil {
		return nil, err
	}
	if n > math.MaxInt32 {
		return nil, errs.New(errs.ResponseTooLarge, "Response has byte size %d which exceeds gRPC's byte size limit %d.", n, math.MaxInt32)
	}
	own, gaps := s.own(n-m.Bulk(lendFrom)), []wire.Gap(nil)
	if *own, gaps = m.Append((*own)[:0], lendFrom); len(gaps) == 0 {
		return mem.BufferSlice{mem.NewBuffer(own, &s.replies)}, nil
	}
	return join(mem.NewBuffer(own, &s.replies), gaps), nil
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

// join puts lent outputs into the gaps of b, which it takes over.
func join(b mem.Buffer, gaps []wire.Gap) mem.BufferSlice {
	parts, from := make(mem.BufferSlice, 0, 2*len(gaps)), 0
	for _, g := range gaps {
		parts = append(parts, b.Slice(from, g.At), lend(g.Data))
		from = g.At
	}
	if from < b.Len() {
		parts = append(parts, b.Slice(from, b.Len()))
	}
	b.Free()
	return parts
}

// loan is an output in gRPC's hands: to gRPC the pool that it came from.
type loan struct {
	output tensor.Ref
	lost   runtime.Cleanup
}

var _ mem.BufferPool = (*loan)(nil)

// lend takes a reference on an output until gRPC gives its bytes back, or
// forgets them, as it may when a connection breaks.
func lend(output tensor.Ref) mem.Buffer {
	l := &loan{output: output.Retain()}
	l.lost = runtime.AddCleanup(l, func(r tensor.Ref) { r.Release() }, l.output)
	data, _ := output.Bytes() // can be read: its size was asked for
	return mem.NewBuffer(&data, l)
}

// Put takes the bytes back.
func (l *loan) Put(*[]byte) {
	l.lost.Stop()
	l.output.Release()
}

// Get is for no one: a loan is for one output.
func (l *loan) Get(n int) *[]byte {
	b := make([]byte, n)
	return &b
}
