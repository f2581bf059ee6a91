//go:build cgo

package onnxruntime

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/device"
)

// tensorRTProvider is the library of ONNX Runtime's provider of TensorRT, beside its own.
const tensorRTProvider = "libonnxruntime_providers_tensorrt.so"

// cudaLibraries are what the CUDA provider needs or asks for beside CUDA's runtime, in an order
// in which each finds what it needs itself.
func cudaLibraries() []string {
	return []string{"libnvJitLink.so.13", "libnvrtc.so.13", "libcublasLt.so.13", "libcublas.so.13", "libcurand.so.10", "libcufft.so.12", "libcudnn.so.9"}
}

// tensorRTLibraries are what the TensorRT provider needs beside those of CUDA.
func tensorRTLibraries() []string { return []string{"libnvinfer.so.10", "libnvonnxparser.so.10"} }

// cuda is what sessions on GPUs need of CUDA, which is opened when the first one asks for it.
type cuda struct {
	*device.CUDA
	// providers is where the providers' libraries are.
	providers string
	pinned    *backend.PinnedMemory

	mu     sync.Mutex
	loaded bool // the libraries; guarded by mu
}

func newCUDA(o Options, onnxruntime string) *cuda {
	return &cuda{CUDA: device.New(device.Directories(o.CUDALibraries, onnxruntime)), providers: filepath.Dir(onnxruntime), pinned: o.Pinned}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// open opens CUDA, looks for the GPU, and loads the libraries, so that the provider finds them
// loaded.
func (d *cuda) open(ordinal int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if cause := WithoutCUDA(filepath.Join(d.providers, "libonnxruntime.so")); cause != "" && !d.loaded {
		return errors.New(cause)
	}
	if err := d.Open(ordinal); err != nil || d.loaded {
		return err
	}
	for _, library := range cudaLibraries() {
		if err := d.Keep(library); err != nil && needed(library) {
			return device.Missing(library, err)
		}
	}
	d.loaded = true
	return nil
}

// needed reports whether no session works without the library. The others are for some
// operators, which fail for themselves.
func needed(library string) bool {
	return !slices.Contains([]string{"libnvJitLink.so.13", "libnvrtc.so.13", "libcufft.so.12", "libcudnn.so.9"}, library)
}

// around calls what CUDA may begin in.
func (d *cuda) around(f func()) {
	f()
	d.Mend()
}
