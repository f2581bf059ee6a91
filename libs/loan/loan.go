// Package loan lends the bytes of tensors to gRPC where they lie, so that large
// ones are not copied into the messages that they belong to. A loan holds a
// reference until gRPC has sent the bytes.
package loan

import (
	"runtime"

	"google.golang.org/grpc/mem"

	"github.com/nereid-serving/nereid/libs/tensor"
)

// Gap is where the bytes of a tensor were left out of an encoded message:
// before the byte At of what was encoded.
type Gap struct {
	At   int
	Data tensor.Ref
}

// Join puts tensors, which can be read in this process, into the gaps of a
// message, and takes over the message and a reference on each tensor. The gaps
// are in their order.
func Join(message mem.Buffer, gaps []Gap) mem.BufferSlice {
	parts, from := make(mem.BufferSlice, 0, 2*len(gaps)+1), 0
	for _, g := range gaps {
		if g.At > from {
			parts = append(parts, message.Slice(from, g.At))
		}
		parts = append(parts, lend(g.Data))
		from = g.At
	}
	if from < message.Len() {
		parts = append(parts, message.Slice(from, message.Len()))
	}
	message.Free()
	return parts
}

// lent is a tensor in gRPC's hands: to gRPC the pool that it came from.
type lent struct {
	tensor tensor.Ref
	lost   runtime.Cleanup
}

var _ mem.BufferPool = (*lent)(nil)

// lend hands a reference on a tensor to gRPC, until gRPC gives its bytes back
// or, as it may when a connection breaks, forgets them.
func lend(r tensor.Ref) mem.Buffer {
	l := &lent{tensor: r}
	l.lost = runtime.AddCleanup(l, func(r tensor.Ref) { r.Release() }, r)
	data, _ := r.Bytes() // can be read, as Join asks
	return mem.NewBuffer(&data, l)
}

// Put takes the bytes back.
func (l *lent) Put(*[]byte) {
	l.lost.Stop()
	l.tensor.Release()
}

// Get is for no one: a loan is of one tensor.
func (l *lent) Get(n int) *[]byte {
	b := make([]byte, n)
	return &b
}
