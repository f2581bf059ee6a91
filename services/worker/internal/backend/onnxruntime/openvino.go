//go:build cgo

package onnxruntime

/*
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// The execution provider for CPUs of OpenVINO, as its library calls it, and the library.
const (
	openVINOProvider = "OpenVINOExecutionProvider"
	openVINOLibrary  = "libonnxruntime_providers_openvino_plugin.so"
)

// openVINO is OpenVINO's library, which is opened when the first model asks for it.
type openVINO struct {
	engine *engine
	pools  *pools
	path   string

	mu   sync.Mutex
	open bool // guarded by mu
}

// openVINOPaths are where the library is looked for that no setting names: below and
// beside ONNX Runtime's.
func openVINOPaths(onnxruntime string) []string {
	dir := filepath.Dir(onnxruntime)
	return []string{filepath.Join(dir, "..", "openvino", openVINOLibrary), filepath.Join(dir, "openvino", openVINOLibrary), filepath.Join(dir, openVINOLibrary)}
}

// newOpenVINO finds the library; it may be missing.
func newOpenVINO(e *engine, p *pools, named, onnxruntime string) *openVINO {
	if named == "" {
		paths := openVINOPaths(onnxruntime)
		named = paths[0]
		if i := slices.IndexFunc(paths, func(path string) bool { _, err := os.Stat(path); return err == nil }); i >= 0 {
			named = paths[i]
		}
	}
	return &openVINO{engine: e, pools: p, path: named}
}

// use has sessions of a model run on OpenVINO what it knows, with so many threads for as
// many runs at a time as there are instances.
func (v *openVINO) use(s *ort.SessionOptions, c *modelconfig.Config, a modelconfig.Accelerator, threads int) error {
	properties, faults := backends.OpenVINOProperties(a.Parameters)
	if len(faults) > 0 {
		return fmt.Errorf("%s: %s", faults[0].Message, faults[0].Fix)
	}
	for _, io := range slices.Concat(c.Inputs, c.Outputs) {
		if io.Datatype == tensor.Bytes {
			return fmt.Errorf("'%s' is of TYPE_STRING, which OpenVINO cuts at zero bytes: remove cpu_execution_accelerator", io.Name)
		}
	}
	runs := 0
	for _, g := range c.Groups {
		if g.Kind != modelconfig.KindGPU {
			runs += g.Count
		}
	}
	if err := v.ensure(); err != nil {
		return err
	}
	for key, value := range map[string]string{
		"INFERENCE_PRECISION_HINT": "f32", // or the answers would differ by the machine
		"INFERENCE_NUM_THREADS":    strconv.Itoa(max(threads, 1)), "NUM_STREAMS": strconv.Itoa(max(min(runs, threads), 1)),
		"ENABLE_CPU_PINNING": "NO", // which cores are free the system knows
	} {
		if _, ok := properties[key]; !ok {
			properties[key] = value
		}
	}
	config, err := json.Marshal(map[string]map[string]string{"CPU": properties})
	if err != nil {
		return err
	}
	native, err := nativeField(s, "o")
	if err != nil {
		return err
	}
	return v.engine.useProvider(v.pools, (*C.OrtSessionOptions)(native), openVINOProvider, string(config))
}

// onSignalStack calls f, and has the thread take signals where it did before. For AMX
// OpenVINO gives the thread on which it begins a stack of its own for signals, which it
// takes away on another where it ends: the next signal then ends the process. Go's stack is
// larger.
func onSignalStack(f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	stack := (*C.stack_t)(C.calloc(1, C.sizeof_stack_t))
	defer C.free(unsafe.Pointer(stack))
	C.nrt_signal_stack(stack)
	defer C.nrt_signal_stack_back(stack)
	f()
}

// ensure opens the library.
func (v *openVINO) ensure() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.open {
		return nil
	}
	if _, err := os.Stat(v.path); err != nil {
		return fmt.Errorf("OpenVINO's library is not there: %w; install it with `make deps` (x86_64) or as the wheel onnxruntime-ep-openvino, "+
			"name it with --backend-config=onnxruntime,openvino-library=FILE, or remove cpu_execution_accelerator", err)
	}
	var err error
	onSignalStack(func() { err = v.engine.openProvider(v.pools, openVINOProvider, v.path) })
	if err != nil {
		return fmt.Errorf("OpenVINO's library %s cannot be opened: %w", v.path, err)
	}
	v.open = true
	return nil
}

// close gives the library up. No session uses it by then.
func (v *openVINO) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.open {
		v.open = false
		onSignalStack(func() { v.engine.closeProvider(v.pools, openVINOProvider) })
	}
}

func (e *engine) openProvider(p *pools, name, path string) error {
	text := newErrorText()
	defer text.free()
	cname, cpath := C.CString(name), C.CString(path)
	defer C.free(unsafe.Pointer(cname))
	defer C.free(unsafe.Pointer(cpath))
	return text.status(C.nrt_provider_open(e.c, p.env, cname, cpath, text.c))
}

func (e *engine) closeProvider(p *pools, name string) {
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	C.nrt_provider_close(e.c, p.env, cname)
}

// useProvider has sessions of the options use a provider, with a configuration of its own.
func (e *engine) useProvider(p *pools, options *C.OrtSessionOptions, provider, config string) error {
	text := newErrorText()
	defer text.free()
	cname, cconfig := C.CString(provider), C.CString(config)
	defer C.free(unsafe.Pointer(cname))
	defer C.free(unsafe.Pointer(cconfig))
	if err := text.status(C.nrt_provider_use(e.c, p.env, options, cname, cconfig, text.c)); err != nil {
		return fmt.Errorf("%s: %w", strings.TrimSuffix(provider, "ExecutionProvider"), err)
	}
	return nil
}
