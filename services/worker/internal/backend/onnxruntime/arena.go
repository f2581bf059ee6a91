//go:build cgo

package onnxruntime

import (
	"math/bits"

	"github.com/nereid-serving/nereid/libs/tensor"
)

// alignment is that of tensors in an arena, in bytes: a cache line, and the
// widest vector register.
const alignment = 64

// shrinkAbove is the size in bytes above which an arena gives its memory back
// when a run needs less than a quarter of it, so that one large batch does not
// cost its memory for ever.
const shrinkAbove = 16 << 20

// arena is an instance's mapped memory, divided anew for each run and kept
// from run to run.
type arena struct {
	pool   *tensor.Pool
	buffer *tensor.Buffer
	used   int64
	// pin keeps memory in its place until the function is called that it returns; nil
	// where no device reads it. unpin is that function.
	pin   func([]byte) (unpin func())
	unpin func()
}

// reserve empties the arena and makes room for n bytes.
func (a *arena) reserve(n int64) error {
	a.used = 0
	if n == 0 || a.fits(n) {
		return nil
	}
	a.free()
	// Powers of two, so that slowly growing runs do not map anew each time.
	size := max(tensor.MappedThreshold, 1<<bits.Len64(uint64(n-1)))
	b, err := a.pool.Get(size)
	if err != nil {
		return err
	}
	a.buffer = b
	if a.pin != nil {
		a.unpin = a.pin(b.Bytes())
	}
	return nil
}

func (a *arena) fits(n int64) bool {
	if a.buffer == nil {
		return false
	}
	size := int64(a.buffer.Len())
	return n <= size && (size <= shrinkAbove || n > size/4)
}

// take returns n bytes, which reserve has made room for as aligned(n).
func (a *arena) take(n int64) []byte {
	if n == 0 {
		return nil
	}
	at := a.used
	a.used += aligned(n)
	return a.buffer.Bytes()[at : at+n : at+n]
}

func (a *arena) free() {
	if a.unpin != nil {
		a.unpin()
		a.unpin = nil
	}
	if a.buffer != nil {
		a.buffer.Release()
		a.buffer = nil
	}
}

func aligned(n int64) int64 { return (n + alignment - 1) &^ (alignment - 1) }
