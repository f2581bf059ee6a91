// Package splice sends tensors without a copy: it splices their bytes into
// encoded gRPC messages as borrowed buffers. A borrowed buffer holds a reference
// on its tensor until gRPC has sent the bytes.
package splice

import (
	"runtime"

	"google.golang.org/grpc/mem"

	"github.com/nereid-serving/nereid/libs/tensor"
)

// Tensor is a tensor to splice into an encoded message.
type Tensor struct {
	// At is the offset in the encoded message before which the tensor's bytes
	// belong.
	At int
	// Data can be read in this process.
	Data tensor.Ref
}

// Join splices tensors, in ascending order of their offsets, into a message. It
// takes over the message and a reference on each tensor.
func Join(message mem.Buffer, tensors []Tensor) mem.BufferSlice {
	joined, from := make(mem.BufferSlice, 0, 2*len(tensors)+1), 0
	for _, t := range tensors {
		if t.At > from {
			joined = append(joined, message.Slice(from, t.At))
		}
		joined = append(joined, borrow(t.Data))
		from = t.At
	}
	if from < message.Len() {
		joined = append(joined, message.Slice(from, message.Len()))
	}
	message.Free()
	return joined
}

// borrowed is a tensor that gRPC reads. It poses as the buffer pool to which gRPC
// returns the bytes.
type borrowed struct {
	tensor tensor.Ref
	lost   runtime.Cleanup
}

var _ mem.BufferPool = (*borrowed)(nil)

// borrow hands a reference on a tensor to gRPC. The reference is released when
// gRPC returns the bytes, or when it drops them, as it may when a connection
// breaks.
func borrow(r tensor.Ref) mem.Buffer {
	b := &borrowed{tensor: r}
	b.lost = runtime.AddCleanup(b, func(r tensor.Ref) { r.Release() }, r)
	data, _ := r.Bytes() // readable in this process
	return mem.NewBuffer(&data, b)
}

// Put releases the tensor.
func (b *borrowed) Put(*[]byte) {
	b.lost.Stop()
	b.tensor.Release()
}

// Get is not used: the pool has one buffer, which gRPC holds.
func (b *borrowed) Get(n int) *[]byte {
	data := make([]byte, n)
	return &data
}
