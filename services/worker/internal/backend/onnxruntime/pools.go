package onnxruntime

/*
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"unsafe"

	ort "github.com/yalue/onnxruntime_go"
)

// pools is the environment with threads that all sessions share.
type pools struct{ env *C.OrtEnv }

// openPools makes the environment, before the binding makes it: there is one
// per process, which the second to ask for it gets as it is.
func (e *engine) openPools(o Options) (*pools, error) {
	text := newErrorText()
	defer text.free()
	spin := 0
	if o.Spinning {
		spin = 1
	}
	// The runtime's choice suits threads that are there once: one per core.
	intra, inter := max(o.IntraOpThreads, 0), max(o.InterOpThreads, 0)
	env := (**C.OrtEnv)(C.calloc(1, C.size_t(unsafe.Sizeof(uintptr(0)))))
	defer C.free(unsafe.Pointer(env))
	if code := C.nrt_pools_open(e.c, C.int(intra), C.int(inter), C.int(spin), env, text.c); code != 0 {
		return nil, text.status(code)
	}
	return &pools{*env}, nil
}

func (e *engine) closePools(p *pools) {
	if p != nil {
		C.nrt_pools_close(e.c, p.env)
	}
}

// usePools makes sessions of the settings use the shared threads.
func (e *engine) usePools(s *ort.SessionOptions) error {
	native, err := nativeField(s, "o")
	if err != nil {
		return err
	}
	text := newErrorText()
	defer text.free()
	return text.status(C.nrt_pools_use(e.c, (*C.OrtSessionOptions)(native), text.c))
}
