package onnxruntime

/*
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"strings"
	"sync"
	"unsafe"

	"github.com/nereid-serving/nereid/libs/tensor"
)

// cname is a tensor name in C memory. Its owner frees it.
type cname = *C.char

func newName(s string) cname                   { return C.CString(s) }
func freeName(n cname)                         { C.free(unsafe.Pointer(n)) }
func bytesAt(p unsafe.Pointer, n int64) []byte { return unsafe.Slice((*byte)(p), n) }

// call is an instance's run of its session, set up anew for each batch. All
// of it lies in C memory, and so does what it points to. It is used by one
// goroutine at a time, except for stop.
type call struct {
	engine *engine
	c      *C.nrt_call
	input  []C.nrt_tensor
	output []C.nrt_tensor

	mu      sync.Mutex
	stopped bool // guarded by mu: a stop has not been undone
	closed  bool // guarded by mu
}

func newCall(e *engine, session unsafe.Pointer, inputs, outputs int) (*call, error) {
	text := newErrorText()
	defer text.free()
	c := C.nrt_call_new(e.c, (*C.OrtSession)(session), C.int32_t(inputs), C.int32_t(outputs), text.c)
	if c == nil {
		return nil, text.status(C.ORT_FAIL)
	}
	return &call{
		engine: e, c: c,
		input:  unsafe.Slice(c.input, inputs),
		output: unsafe.Slice(c.output, outputs),
	}, nil
}

// configure sets an entry of the run options.
func (c *call) configure(key, value string) error {
	k, v := C.CString(key), C.CString(value)
	defer C.free(unsafe.Pointer(k))
	defer C.free(unsafe.Pointer(v))
	if code := C.nrt_call_config(c.engine.c, c.c, k, v); code != 0 {
		return c.failure(code)
	}
	return nil
}

func (c *call) failure(code C.int) error {
	return &statusError{code: int(code), text: strings.TrimSpace(C.GoString(&c.c.error[0]))}
}

// begin empties the call.
func (c *call) begin() { c.c.inputs, c.c.outputs = 0, 0 }

// addInput adds an input over data, which is not Go memory.
func (c *call) addInput(name cname, element int32, shape []int64, data []byte) {
	t := &c.input[c.c.inputs]
	c.c.inputs++
	fill(t, name, element, shape)
	t.data, t.bytes = nil, C.int64_t(len(data))
	if len(data) > 0 {
		t.data = unsafe.Pointer(unsafe.SliceData(data))
	}
}

// addOutput adds an output. Into data, which is not Go memory, it is written
// if its shape is known; if data is empty the runtime allocates it.
func (c *call) addOutput(name cname, element int32, shape []int64, data []byte) {
	t := &c.output[c.c.outputs]
	c.c.outputs++
	fill(t, name, element, shape)
	t.data, t.bytes = nil, C.int64_t(len(data))
	if len(data) > 0 {
		t.data = unsafe.Pointer(unsafe.SliceData(data))
	}
}

func fill(t *C.nrt_tensor, name cname, element int32, shape []int64) {
	t.name, t._type, t.rank = name, C.int32_t(element), C.int32_t(len(shape))
	copy(unsafe.Slice((*int64)(unsafe.Pointer(&t.dims[0])), maxRank), shape)
}

// run runs the session: one cgo call.
func (c *call) run() error {
	if code := C.nrt_run(c.engine.c, c.c); code != 0 {
		return c.failure(code)
	}
	return nil
}

// result is one output of a run. Its shape lies in the call and is valid
// until the next begin.
type result struct {
	element int32
	shape   tensor.Shape
	data    unsafe.Pointer
	bytes   int64 // of packed strings
	value   *C.OrtValue
	packed  bool
}

// result returns output i. One that is not bound is held until freed.
func (c *call) result(i int) result {
	t := &c.output[i]
	if t.value != nil || t.packed != 0 {
		c.engine.held.Add(1)
	}
	return result{
		element: int32(t._type),
		shape:   unsafe.Slice((*int64)(unsafe.Pointer(&t.dims[0])), t.rank),
		data:    t.data,
		bytes:   int64(t.bytes),
		value:   t.value,
		packed:  t.packed != 0,
	}
}

// free gives up what the result holds.
func (r *result) free(e *engine) {
	if r.packed {
		e.release(nil, r.data)
		return
	}
	e.release(r.value, nil)
}

// stop ends the run under way, or the next one.
func (c *call) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.stopped = true
	C.nrt_stop(c.engine.c, c.c)
}

// resume undoes stops and reports whether there was one.
func (c *call) resume() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.stopped
	if was {
		c.stopped = false
		C.nrt_reset(c.engine.c, c.c)
	}
	return was
}

func (c *call) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.closed = true
		C.nrt_call_free(c.engine.c, c.c)
	}
}

// reads reports whether an address lies in an input of the call.
func (c *call) reads(p unsafe.Pointer) bool {
	for i := range c.c.inputs {
		t := &c.input[i]
		if start := uintptr(t.data); t.data != nil && uintptr(p) >= start && uintptr(p) < start+uintptr(t.bytes) {
			return true
		}
	}
	return false
}
