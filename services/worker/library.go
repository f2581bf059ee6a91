package worker

import (
	"os"
	"path/filepath"

	"github.com/nereid-serving/nereid/services/worker/internal/backend/onnxruntime"
)

// RuntimeLibrary is where ONNX Runtime's library is by default: where make
// deps puts it for a program in bin/, else wherever the system finds it.
func RuntimeLibrary() string {
	const name = "libonnxruntime.so"
	program, err := os.Executable()
	if err != nil {
		return name
	}
	deps := filepath.Join(filepath.Dir(program), "..", ".deps")
	for _, kind := range []string{"onnxruntime-gpu", "onnxruntime"} { // the one for GPUs does all that the other does
		beside := filepath.Join(deps, kind, name)
		if _, err := os.Stat(beside); err == nil {
			return beside
		}
	}
	return name
}

// WithoutCUDA tells what to do about an ONNX Runtime, by its library's path, that has no provider
// for GPUs; empty if it has one.
func WithoutCUDA(library string) string { return onnxruntime.WithoutCUDA(library) }
