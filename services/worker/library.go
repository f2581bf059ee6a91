package worker

import (
	"os"
	"path/filepath"

	"github.com/nereid-serving/nereid/services/worker/internal/backend/onnxruntime"
)

// RuntimeLibrary is where ONNX Runtime's library is by default, relative to the
// program: lib/nereid of an unpacked archive, .deps of a checkout, else wherever
// the system finds it.
func RuntimeLibrary() string {
	const name = "libonnxruntime.so"
	program, err := os.Executable()
	if err != nil {
		return name
	}
	prefix := filepath.Join(filepath.Dir(program), "..")
	// The library for GPUs does all that the other does.
	for _, dir := range []string{"lib/nereid", ".deps/onnxruntime-gpu", ".deps/onnxruntime"} {
		found := filepath.Join(prefix, dir, name)
		if _, err := os.Stat(found); err == nil {
			return found
		}
	}
	return name
}

// WithoutCUDA tells what to do about an ONNX Runtime, by its library's path, that has no provider
// for GPUs; empty if it has one.
func WithoutCUDA(library string) string { return onnxruntime.WithoutCUDA(library) }
