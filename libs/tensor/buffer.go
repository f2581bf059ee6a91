package tensor

import (
	"sync/atomic"

	"github.com/nereid-serving/nereid/libs/invariant"
)

// Buffer is a run of bytes with a reference count. It starts with one reference, which the
// caller owns; code that keeps the bytes past the call that passed them takes another with
// [Buffer.Retain]. When the last reference is released, the memory returns to its owner and
// must not be used.
//
// The count is safe for concurrent use. The bytes are not locked: they are
// written by the first owner alone, before the buffer is shared.
type Buffer struct {
	data   []byte
	mapped bool
	refs   atomic.Int32
	free   func(*Buffer)
}

// Wrap makes a buffer of data that calls free once, when the last reference
// is released. free may be nil. mapped says that data lies outside the Go
// heap, so that its address may be handed to C.
func Wrap(data []byte, mapped bool, free func(*Buffer)) *Buffer {
	b := &Buffer{data: data, mapped: mapped, free: free}
	b.refs.Store(1)
	return b
}

// Bytes returns the bytes. They are valid while the caller holds a reference.
func (b *Buffer) Bytes() []byte {
	invariant.Check(b.refs.Load() > 0, "bytes of a released buffer")
	return b.data
}

// Len returns the number of bytes.
func (b *Buffer) Len() int { return len(b.data) }

// Mapped reports whether the bytes lie outside the Go heap.
func (b *Buffer) Mapped() bool { return b.mapped }

// Retain adds a reference and returns b.
func (b *Buffer) Retain() *Buffer {
	n := b.refs.Add(1)
	invariant.Check(n > 1, "retain of a released buffer")
	return b
}

// Release releases one reference.
func (b *Buffer) Release() {
	n := b.refs.Add(-1)
	invariant.Check(n >= 0, "buffer released too often")
	if n == 0 && b.free != nil {
		b.free(b)
	}
}
