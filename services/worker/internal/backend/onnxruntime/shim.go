package onnxruntime

/*
#cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra
#cgo LDFLAGS: -ldl
#cgo noescape nrt_run
#cgo nocallback nrt_run
#cgo noescape nrt_stop
#cgo nocallback nrt_stop
#cgo noescape nrt_reset
#cgo nocallback nrt_reset
#cgo noescape nrt_release
#cgo nocallback nrt_release
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/nereid-serving/nereid/libs/tensor"
)

// maxRank is the most dimensions of a tensor that the shim carries.
const maxRank = C.NRT_MAX_RANK

// statusError is an error of ONNX Runtime, or of the shim in its codes.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string { return fmt.Sprintf("onnx runtime error %d: %s", e.code, e.text) }

// engine is the opened library as the shim sees it. It is safe for concurrent
// use until closed.
type engine struct {
	c *C.nrt_runtime
	// held counts results that the runtime or the shim allocated and that
	// have not been released.
	held atomic.Int64
}

// errorText is room in C for a function's error text.
type errorText struct{ c *C.char }

func newErrorText() errorText {
	return errorText{(*C.char)(C.calloc(C.NRT_ERROR_BYTES, 1))}
}

func (t errorText) free() { C.free(unsafe.Pointer(t.c)) }

func (t errorText) status(code C.int) error {
	if code == 0 {
		return nil
	}
	return &statusError{code: int(code), text: C.GoString(t.c)}
}

func openEngine(path string) (*engine, error) {
	e := &engine{c: (*C.nrt_runtime)(C.calloc(1, C.sizeof_nrt_runtime))}
	text := newErrorText()
	defer text.free()
	cpath := C.CString(path)
	defer C.free(unsafe.Pointer(cpath))
	if code := C.nrt_open(cpath, e.c, text.c); code != 0 {
		C.free(unsafe.Pointer(e.c))
		return nil, errors.New(C.GoString(text.c))
	}
	return e, nil
}

func (e *engine) version() string { return C.GoString(e.c.version) }

// close frees what runs need. The table of functions stays, a few bytes per
// process: outputs that outlive the backend are released through it.
func (e *engine) close() { C.nrt_close(e.c) }

// trim gives the memory of closed sessions back to the system.
func (e *engine) trim() { C.nrt_heap_trim() }

// release frees what an output of a run holds.
func (e *engine) release(v *C.OrtValue, packed unsafe.Pointer) {
	C.nrt_release(e.c, v, packed)
	e.held.Add(-1)
}

// sessionIO is one input or output that a session declares.
type sessionIO struct {
	name     string
	onnxType int
	element  int32
	// dims has -1 for a dimension of any size. hasShape is false if the model
	// does not even say the number of dimensions.
	dims     tensor.Shape
	hasShape bool
}

// declared lists the inputs, outputs or overridable initialisers of a
// session.
func (e *engine) declared(session unsafe.Pointer, kind C.int) ([]sessionIO, error) {
	text := newErrorText()
	defer text.free()
	s := (*C.OrtSession)(session)
	n := (*C.size_t)(C.calloc(1, C.sizeof_size_t))
	defer C.free(unsafe.Pointer(n))
	if err := text.status(C.nrt_io_count(e.c, s, kind, n, text.c)); err != nil {
		return nil, err
	}
	list := make([]sessionIO, 0, *n)
	for i := range *n {
		io := (*C.nrt_io)(C.calloc(1, C.sizeof_nrt_io))
		err := text.status(C.nrt_io_at(e.c, s, kind, i, io, text.c))
		if err == nil {
			list = append(list, readIO(io))
		}
		C.free(unsafe.Pointer(io.name))
		C.free(unsafe.Pointer(io))
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

func readIO(io *C.nrt_io) sessionIO {
	dims := make(tensor.Shape, io.rank)
	for i := range dims {
		dims[i] = max(int64(io.dims[i]), -1)
	}
	return sessionIO{
		name:     C.GoString(io.name),
		onnxType: int(io.onnx_type),
		element:  int32(io._type),
		dims:     dims,
		hasShape: io.has_shape != 0,
	}
}

func (e *engine) inputs(s unsafe.Pointer) ([]sessionIO, error) { return e.declared(s, C.NRT_INPUT) }

func (e *engine) outputs(s unsafe.Pointer) ([]sessionIO, error) { return e.declared(s, C.NRT_OUTPUT) }

func (e *engine) initializers(s unsafe.Pointer) ([]sessionIO, error) {
	return e.declared(s, C.NRT_INITIALIZER)
}
