package codec

import (
	"sync"

	"google.golang.org/grpc/mem"
)

const (
	// smallestSpare is the size of a new buffer. gRPC does not give back those
	// of 1 KiB and less.
	smallestSpare = 4 << 10
	// largestSpare bounds what is kept.
	largestSpare = 1 << 20
)

// Spares are the buffers that envelopes are written into, kept for the next
// ones. The zero value is empty. It is safe for concurrent use.
type Spares struct{ pool sync.Pool }

var _ mem.BufferPool = (*Spares)(nil)

func (s *Spares) get() *[]byte {
	if b, ok := s.pool.Get().(*[]byte); ok {
		return b
	}
	b := make([]byte, 0, smallestSpare)
	return &b
}

// Put takes a buffer back.
func (s *Spares) Put(b *[]byte) {
	if cap(*b) <= largestSpare {
		s.pool.Put(b)
	}
}

// Get returns a buffer of n bytes with any content.
func (s *Spares) Get(n int) *[]byte {
	b := make([]byte, n)
	return &b
}
