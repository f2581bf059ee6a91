//go:build cgo

package onnxruntime

import (
	"testing"
	"unsafe"

	"github.com/nereid-serving/nereid/libs/tensor"
)

func TestArenaGrowsShrinksAndAligns(t *testing.T) {
	pool := tensor.NewPool(0)
	a := arena{pool: pool}
	steps := []struct{ need, size int64 }{
		{0, 0},
		{100, tensor.MappedThreshold},
		{20000, 1 << 15},
		{100, 1 << 15},
		{40 << 20, 64 << 20},
		{17 << 20, 64 << 20}, // more than a quarter: kept
		{10 << 20, 16 << 20}, // less: given back
		{1 << 10, 16 << 20},  // small enough to be kept
	}
	for _, s := range steps {
		if err := a.reserve(s.need); err != nil {
			t.Fatal(err)
		}
		if got := pool.Stats().InUse; got != s.size {
			t.Errorf("a run of %d bytes leaves an arena of %d, want %d", s.need, got, s.size)
		}
	}
	for _, n := range []int64{1, 64, 65} {
		b := a.take(n)
		if at := uintptr(unsafe.Pointer(&b[0])); at%alignment != 0 || int64(len(b)) != n || cap(b) != len(b) {
			t.Errorf("take(%d) gives %d bytes (capacity %d) at %#x", n, len(b), cap(b), at)
		}
	}
	a.free()
	if got := pool.Stats().InUse; got != 0 {
		t.Errorf("%d bytes are in use after free", got)
	}
}
