package rpc

import (
	"math/bits"
	"sync"

	"google.golang.org/grpc/mem"
)

// buffers is the pool in which frames are received and replies encoded. gRPC's own pools clear the buffers that
// they return, a second pass over every byte; here the whole buffer is overwritten anyway. The memory is on the
// Go heap, since gRPC may drop a buffer when a connection breaks.
type buffers struct {
	sizes [largestBits - smallestBits + 1]sync.Pool // of *[]byte, by power of two
}

var _ mem.BufferPool = (*buffers)(nil)

const (
	smallestBits = 11 // gRPC does not return buffers of 1 KiB and less
	largestBits  = 26
)

// Get returns n bytes with arbitrary content.
func (p *buffers) Get(n int) *[]byte {
	class := classOf(n)
	if class >= len(p.sizes) {
		b := make([]byte, n)
		return &b
	}
	if b, ok := p.sizes[class].Get().(*[]byte); ok {
		*b = (*b)[:n]
		return b
	}
	b := make([]byte, n, 1<<(class+smallestBits))
	return &b
}

// Put returns a buffer to the pool.
func (p *buffers) Put(b *[]byte) {
	if class := classOf(cap(*b)); class < len(p.sizes) {
		p.sizes[class].Put(b)
	}
}

func classOf(n int) int { return max(bits.Len(uint(max(n, 1)-1)), smallestBits) - smallestBits }
