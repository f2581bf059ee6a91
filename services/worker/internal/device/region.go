//go:build cgo

package device

/*
#include <stdlib.h>
#include "cuda.h"
*/
import "C"

import (
	"fmt"
	"unsafe"
)

// Region is memory of a GPU that another process has allocated. It is used by one goroutine
// at a time.
type Region struct {
	cuda *CUDA
	c    *C.ncu_region
}

// Map maps the memory of a handle, which has the bytes of a cudaIpcMemHandle_t, on an opened
// GPU.
func (d *CUDA) Map(ordinal int, handle [HandleBytes]byte) (*Region, error) {
	r := &Region{cuda: d, c: (*C.ncu_region)(C.calloc(1, C.sizeof_ncu_region))}
	raw := C.CBytes(handle[:])
	defer C.free(raw)
	err := told(func(text *C.char) C.int { return C.ncu_map(d.opened(), C.int(ordinal), raw, r.c, text) })
	d.Mend()
	if err != nil {
		C.free(unsafe.Pointer(r.c))
		return nil, err
	}
	return r, nil
}

// Bytes is the size of the allocation.
func (r *Region) Bytes() uint64 { return uint64(r.c.bytes) }

// Read fills data from offset on.
func (r *Region) Read(data []byte, offset uint64) error {
	return r.copy(data, offset, func(at unsafe.Pointer, text *C.char) C.int {
		return C.ncu_read(r.cuda.opened(), r.c, C.size_t(offset), at, C.size_t(len(data)), text)
	})
}

// Write writes data from offset on.
func (r *Region) Write(data []byte, offset uint64) error {
	return r.copy(data, offset, func(at unsafe.Pointer, text *C.char) C.int {
		return C.ncu_write(r.cuda.opened(), r.c, C.size_t(offset), at, C.size_t(len(data)), text)
	})
}

func (r *Region) copy(data []byte, offset uint64, do func(unsafe.Pointer, *C.char) C.int) error {
	if n := uint64(len(data)); offset > r.Bytes() || n > r.Bytes()-offset {
		return fmt.Errorf("%d bytes at %d lie outside of the %d bytes of memory", n, offset, r.Bytes())
	}
	if len(data) == 0 {
		return nil
	}
	return told(func(text *C.char) C.int { return do(unsafe.Pointer(unsafe.SliceData(data)), text) })
}

// Close unmaps the memory.
func (r *Region) Close() {
	C.ncu_unmap(r.cuda.opened(), r.c)
	C.free(unsafe.Pointer(r.c))
}
