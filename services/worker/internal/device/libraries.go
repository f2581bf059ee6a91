package device

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// The libraries that CUDA begins with. The driver's may be newer than the system's and in a
// directory of its own.
const (
	Driver  = "libcuda.so.1"
	Runtime = "libcudart.so.13"
)

// HandleBytes is the size of a cudaIpcMemHandle_t.
const HandleBytes = 64

// Directories are where CUDA's libraries are looked for, before the system looks: in the named
// list of directories, which may be those of Python's packages, or beside the library of ONNX
// Runtime.
func Directories(named, onnxruntime string) []string {
	roots := filepath.SplitList(named)
	if named == "" {
		beside := filepath.Dir(onnxruntime)
		roots = []string{filepath.Join(beside, "..", "cuda"), filepath.Join(beside, "cuda"), beside}
	}
	var all []string
	for _, root := range roots {
		wheels, _ := filepath.Glob(filepath.Join(root, "nvidia", "*", "lib")) // the pattern is valid
		all = append(append(all, root), wheels...)
	}
	return all
}

// Missing words that a library is not there, and what to do.
func Missing(library string, err error) error {
	if library == Driver {
		return fmt.Errorf("NVIDIA's driver is not there: %w; install one of version 580 or later, or give the container the GPU (docker run --gpus all)", err)
	}
	return fmt.Errorf("CUDA's library %s is not there: %w; install CUDA's libraries with `make deps GPU=1`, or name the directory that has them, or of Python's packages, "+
		"with --backend-config=onnxruntime,cuda-libraries=DIR", library, err)
}

// Ordinal is the number that CUDA gives to the GPU of a machine's number: its place among the
// visible ones, or the only one.
func Ordinal(number int) int {
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
