//go:build cgo

package device

/*
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "cuda.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"unsafe"
)

// CUDA is CUDA in this process, which is opened when the first GPU is. It is safe for
// concurrent use.
type CUDA struct {
	directories []string

	mu      sync.Mutex
	c       *C.ncu_cuda    // nil until it is open; guarded by mu
	signals *C.ncu_signals // those of before; guarded by mu
}

// New returns CUDA whose libraries are in these directories, see [Directories], or where the
// system looks.
func New(directories []string) *CUDA { return &CUDA{directories: directories} }

// Find returns the path of a library, or its name where the system has to look.
func (d *CUDA) Find(library string) string {
	for _, dir := range d.directories {
		path := filepath.Join(dir, library)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return library
}

// Keep loads a library until the process ends.
func (d *CUDA) Keep(library string) error {
	path := C.CString(d.Find(library))
	defer C.free(unsafe.Pointer(path))
	return told(func(text *C.char) C.int { return C.ncu_keep(path, text) })
}

// Open loads the driver and CUDA's runtime, and looks for the GPU of that number among those
// that CUDA sees. It may be called again.
func (d *CUDA) Open(ordinal int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.c == nil {
		if err := d.loadLocked(); err != nil {
			return err
		}
	}
	count := (*C.int)(C.calloc(1, C.sizeof_int))
	defer C.free(unsafe.Pointer(count))
	if err := told(func(text *C.char) C.int { return C.ncu_devices(d.c, count, text) }); err != nil {
		return fmt.Errorf("CUDA sees no GPU: %w; look at nvidia-smi, and give the container the GPU (docker run --gpus all)", err)
	}
	if ordinal >= int(*count) {
		return fmt.Errorf("there is no GPU %d: CUDA sees %d, numbered from 0 (CUDA_VISIBLE_DEVICES=%q)", ordinal, int(*count), os.Getenv("CUDA_VISIBLE_DEVICES"))
	}
	return nil
}

// loadLocked loads the libraries, by their paths.
func (d *CUDA) loadLocked() error {
	// As the driver's tools and Nereid count devices.
	if os.Getenv("CUDA_DEVICE_ORDER") == "" {
		if err := os.Setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID"); err != nil {
			return err
		}
	}
	if d.signals == nil {
		d.signals = (*C.ncu_signals)(C.calloc(1, C.sizeof_ncu_signals))
		C.ncu_signals_keep(d.signals)
	}
	for _, library := range []string{Driver, Runtime} {
		if err := d.Keep(library); err != nil {
			return Missing(library, err)
		}
	}
	runtime, driver := C.CString(d.Find(Runtime)), C.CString(d.Find(Driver))
	defer C.free(unsafe.Pointer(runtime))
	defer C.free(unsafe.Pointer(driver))
	c := (*C.ncu_cuda)(C.calloc(1, C.sizeof_ncu_cuda))
	if err := told(func(text *C.char) C.int { return C.ncu_open(c, runtime, driver, text) }); err != nil {
		C.free(unsafe.Pointer(c))
		return fmt.Errorf("CUDA's runtime cannot be used: %w", err)
	}
	d.c = c
	return nil
}

// opened is CUDA's functions, once a GPU was opened.
func (d *CUDA) opened() *C.ncu_cuda {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.c
}

// Mend puts signal handlers back that CUDA has replaced by such as would end the process. It
// is called after what CUDA may begin in.
func (d *CUDA) Mend() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.signals != nil {
		C.ncu_signals_mend(d.signals)
	}
}

// Memory tells how many bytes of an opened GPU are free, and how many it has.
func (d *CUDA) Memory(ordinal int) (free, total int64, err error) {
	sizes := (*[2]C.size_t)(C.calloc(2, C.sizeof_size_t))
	defer C.free(unsafe.Pointer(sizes))
	err = told(func(text *C.char) C.int {
		return C.ncu_memory(d.opened(), C.int(ordinal), &sizes[0], &sizes[1], text)
	})
	return int64(sizes[0]), int64(sizes[1]), err
}

// Synchronize waits for an opened GPU. One that has faulted fails for good.
func (d *CUDA) Synchronize(ordinal int) error {
	return told(func(text *C.char) C.int { return C.ncu_synchronize(d.opened(), C.int(ordinal), text) })
}

// Capability is an opened GPU's compute capability, such as 9.0.
func (d *CUDA) Capability(ordinal int) (string, error) {
	parts := (*[2]C.int)(C.calloc(2, C.sizeof_int))
	defer C.free(unsafe.Pointer(parts))
	err := told(func(text *C.char) C.int {
		return C.ncu_capability(d.opened(), C.int(ordinal), &parts[0], &parts[1], text)
	})
	return fmt.Sprintf("%d.%d", parts[0], parts[1]), err
}

// Pin keeps memory outside of Go's heap in its place, so that an opened GPU reads and writes
// it by itself, until Unpin.
func (d *CUDA) Pin(ordinal int, memory []byte) error {
	return told(func(text *C.char) C.int {
		return C.ncu_pin(d.opened(), C.int(ordinal), unsafe.Pointer(unsafe.SliceData(memory)), C.size_t(len(memory)), text)
	})
}

// Unpin lets pinned memory go.
func (d *CUDA) Unpin(memory []byte) {
	C.ncu_unpin(d.opened(), unsafe.Pointer(unsafe.SliceData(memory)))
}

// told is the error of a function in C, with the text that it has written.
func told(call func(text *C.char) C.int) error {
	text := (*C.char)(C.calloc(C.NCU_ERROR_BYTES, 1))
	defer C.free(unsafe.Pointer(text))
	if call(text) == 0 {
		return nil
	}
	return errors.New(C.GoString(text))
}
