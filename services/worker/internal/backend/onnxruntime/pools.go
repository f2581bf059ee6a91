package onnxruntime

/*
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"unsafe"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/services/worker/internal/cores"
)

// pools is the environment with threads that sessions share.
type pools struct{ env *C.OrtEnv }

// openPools makes the environment, before the binding makes it: there is one
// per process, which the second to ask for it gets as it is.
func (e *engine) openPools(o Options) (*pools, error) {
	text := newErrorText()
	defer text.free()
	intra, inter := max(o.Threads, 1), 1
	if o.GlobalThreads {
		// The runtime's choice suits threads that are there once: one per core.
		intra, inter = max(o.IntraOpThreads, 0), max(o.InterOpThreads, 0)
	}
	env := (**C.OrtEnv)(C.calloc(1, C.size_t(unsafe.Sizeof(uintptr(0)))))
	defer C.free(unsafe.Pointer(env))
	if code := C.nrt_pools_open(e.c, C.int(intra), C.int(inter), env, text.c); code != 0 {
		return nil, text.status(code)
	}
	return &pools{*env}, nil
}

func (e *engine) closePools(p *pools) {
	if p != nil {
		C.nrt_pools_close(e.c, p.env)
	}
}

// shared reports whether a model's session uses the shared threads: unless a
// number of threads is set for it, or the cores on which they stay.
func (o Options) shared(c *modelconfig.Config, pinned cores.Set) bool {
	if o.GlobalThreads {
		return true
	}
	_, intra := c.Parameters[intraOpThreads]
	_, inter := c.Parameters[interOpThreads]
	return !intra && !inter && o.IntraOpThreads == 0 && o.InterOpThreads == 0 && pinned.Empty()
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
