package rpc

import (
	"math"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/loan"
)

// lendFrom is the size in bytes from which an output is sent from where it
// lies. A smaller one is cheaper to copy.
const lendFrom = 32 << 10

// message is what package wire encodes.
type message interface {
	Size() (int, error)
	Bulk(least int64) int
	Append(b []byte, least int64) ([]byte, []loan.Gap)
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
	own, gaps := s.own(n-m.Bulk(lendFrom)), []loan.Gap(nil)
	if *own, gaps = m.Append((*own)[:0], lendFrom); len(gaps) == 0 {
		return mem.BufferSlice{mem.NewBuffer(own, &s.replies)}, nil
	}
	for _, g := range gaps {
		g.Data.Retain() // for gRPC; the answer keeps its own
	}
	return loan.Join(mem.NewBuffer(own, &s.replies), gaps), nil
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
