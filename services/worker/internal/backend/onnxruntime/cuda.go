//go:build cgo

package onnxruntime

/*
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

// The libraries of ONNX Runtime's providers for GPUs, beside its own, and CUDA's runtime.
const (
	tensorRTProvider = "libonnxruntime_providers_tensorrt.so"
	cudaRuntime      = "libcudart.so.13"
)

// cudaLibraries are what the CUDA provider needs or asks for, in an order in which each finds
// what it needs itself. The driver's is among them for machines with one newer than the
// system's in a directory of its own.
func cudaLibraries() []string {
	return []string{
		"libcuda.so.1", cudaRuntime, "libnvJitLink.so.13", "libnvrtc.so.13", "libcublasLt.so.13", "libcublas.so.13", "libcurand.so.10", "libcufft.so.12", "libcudnn.so.9",
	}
}

// tensorRTLibraries are what the TensorRT provider needs beside those of CUDA.
func tensorRTLibraries() []string { return []string{"libnvinfer.so.10", "libnvonnxparser.so.10"} }

// cuda is what sessions on GPUs need of CUDA, which is opened when the first one asks for it.
type cuda struct {
	// providers is where the providers' libraries are, named the directories of CUDA's
	// libraries as the setting has them.
	providers string
	named     string
	pinned    *backend.PinnedMemory

	mu      sync.Mutex
	runtime *C.nrt_cuda    // nil until it is open; guarded by mu
	signals *C.nrt_signals // those of before; guarded by mu
}

func newCUDA(o Options, onnxruntime string) *cuda {
	return &cuda{providers: filepath.Dir(onnxruntime), named: o.CUDALibraries, pinned: o.Pinned}
}

// directories are where CUDA's libraries are looked for, before the system looks: where the
// setting says, which may be a directory of Python's packages, or beside ONNX Runtime's.
func (d *cuda) directories() []string {
	roots := filepath.SplitList(d.named)
	if d.named == "" {
		roots = []string{filepath.Join(d.providers, "..", "cuda"), filepath.Join(d.providers, "cuda"), d.providers}
	}
	var all []string
	for _, root := range roots {
		wheels, _ := filepath.Glob(filepath.Join(root, "nvidia", "*", "lib")) // the pattern is valid
		all = append(append(all, root), wheels...)
	}
	return all
}

// find returns the path of a library, or its name where the system has to look.
func (d *cuda) find(library string) string {
	for _, dir := range d.directories() {
		if path := filepath.Join(dir, library); exists(path) {
			return path
		}
	}
	return library
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// open opens CUDA and looks for the GPU.
func (d *cuda) open(device int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.runtime == nil {
		if err := d.openRuntime(); err != nil {
			return err
		}
	}
	return d.checkDevice(device)
}

// opened is CUDA's runtime, once a GPU was opened.
func (d *cuda) opened() *C.nrt_cuda {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.runtime
}

// openRuntime loads the libraries, by their paths, so that the provider finds them loaded.
func (d *cuda) openRuntime() error {
	if cause := WithoutCUDA(filepath.Join(d.providers, "libonnxruntime.so")); cause != "" {
		return errors.New(cause)
	}
	// As the driver's tools and Nereid count devices.
	if os.Getenv("CUDA_DEVICE_ORDER") == "" {
		if err := os.Setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID"); err != nil {
			return err
		}
	}
	if d.signals == nil {
		d.signals = (*C.nrt_signals)(C.calloc(1, C.sizeof_nrt_signals))
		C.nrt_signals_keep(d.signals)
	}
	for _, library := range cudaLibraries() {
		if err := d.keep(library); err != nil && needed(library) {
			return missingCUDA(library, err)
		}
	}
	text := newErrorText()
	defer text.free()
	name := C.CString(d.find(cudaRuntime))
	defer C.free(unsafe.Pointer(name))
	runtime := (*C.nrt_cuda)(C.calloc(1, C.sizeof_nrt_cuda))
	if err := text.status(C.nrt_cuda_open(runtime, name, text.c)); err != nil {
		C.free(unsafe.Pointer(runtime))
		return fmt.Errorf("CUDA's runtime cannot be used: %w", err)
	}
	d.runtime = runtime
	return nil
}

// keep loads a library until the process ends.
func (d *cuda) keep(library string) error {
	text := newErrorText()
	defer text.free()
	path := C.CString(d.find(library))
	defer C.free(unsafe.Pointer(path))
	if C.nrt_library_keep(path, text.c) != 0 {
		return errors.New(C.GoString(text.c))
	}
	return nil
}

// needed reports whether no session works without the library. The others are for some
// operators, which fail for themselves.
func needed(library string) bool {
	return !slices.Contains([]string{"libnvJitLink.so.13", "libnvrtc.so.13", "libcufft.so.12", "libcudnn.so.9"}, library)
}

func missingCUDA(library string, err error) error {
	if library == "libcuda.so.1" {
		return fmt.Errorf("NVIDIA's driver is not there: %w; install one of version 580 or later, or give the container the GPU (docker run --gpus all)", err)
	}
	return fmt.Errorf("CUDA's library %s is not there: %w; install CUDA's libraries with `make deps GPU=1`, or name the directory that has them, or of Python's packages, "+
		"with --backend-config=onnxruntime,cuda-libraries=DIR", library, err)
}

// checkDevice reports what is wrong with the GPU of that number among those that CUDA sees.
func (d *cuda) checkDevice(device int) error {
	text := newErrorText()
	defer text.free()
	count := (*C.int)(C.calloc(1, C.sizeof_int))
	defer C.free(unsafe.Pointer(count))
	if err := text.status(C.nrt_cuda_devices(d.runtime, count, text.c)); err != nil {
		return fmt.Errorf("CUDA sees no GPU: %s; look at nvidia-smi, and give the container the GPU (docker run --gpus all)", C.GoString(text.c))
	}
	if device >= int(*count) {
		return fmt.Errorf("there is no GPU %d: CUDA sees %d, numbered from 0 (CUDA_VISIBLE_DEVICES=%q)", device, int(*count), os.Getenv("CUDA_VISIBLE_DEVICES"))
	}
	return nil
}

// ordinal is the number that CUDA gives to the GPU of a machine's number: its place among the
// visible ones, or the only one.
func ordinal(number int) int {
	visible := os.Getenv("CUDA_VISIBLE_DEVICES")
	if visible == "" {
		return number
	}
	list := strings.Split(visible, ",")
	if i := slices.Index(list, strconv.Itoa(number)); i >= 0 {
		return i
	}
	if len(list) == 1 {
		return 0
	}
	return number
}

// around calls what CUDA may begin in.
func (d *cuda) around(f func()) {
	f()
	d.mend()
}

// mend puts signal handlers back that CUDA has replaced by such as would end the process.
func (d *cuda) mend() {
	d.mu.Lock()
	defer d.mu.Unlock()
	C.nrt_signals_mend(d.signals)
}
