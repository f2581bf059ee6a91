package onnxruntime

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

// cudaSetting is the setting that names the directories of CUDA's libraries.
const cudaSetting = "cuda-libraries"

// CUDALibraries are the directories of CUDA's libraries as the settings of backends, by their
// names, have them; empty for the standard ones.
func CUDALibraries(settings map[string]map[string]string) string {
	return settings[backends.ONNXRuntime][cudaSetting]
}

// Driver opens the backend with the library of that path or name.
func Driver(library string) backend.Driver {
	return backend.Driver{
		Name: backends.ONNXRuntime,
		Check: func(settings map[string]string) error {
			_, err := Options{}.With(settings)
			return err
		},
		Open: func(e backend.Environment) (backend.Backend, error) {
			o, err := Options{Pool: e.Pool, Threads: e.Cores, Cores: e.HostPolicies, RunInC: e.RunInC, DeviceFailed: e.DeviceFailed, Pinned: e.Pinned}.With(e.Settings)
			if err != nil {
				return nil, err
			}
			b, err := Open(library, o)
			if err != nil {
				return nil, err // not b, which would be no nil interface
			}
			return b, nil
		},
	}
}

// Plans is the driver of TensorRT's plans, whose models the backend of [Driver] runs: it checks
// the settings of Triton's names, which change nothing here.
func Plans() backend.Driver {
	return backend.Driver{Name: backends.Plans, Check: func(settings map[string]string) error {
		for key, value := range settings {
			switch key {
			case "coalesce-request-input", "execution-policy", "version-compatible", modelconfig.MaxBatchSizeSetting:
			default:
				return errs.New(errs.ConfigInvalid, "--backend-config=%s,%s=%s: the backend has no such setting, and loads no plugins; leave it out", backends.Plans, key, value)
			}
		}
		return nil
	}}
}

// cudaProvider is the library of ONNX Runtime's provider for GPUs, beside its own.
const cudaProvider = "libonnxruntime_providers_cuda.so"

// WithoutCUDA tells what to do about an ONNX Runtime, by its library's path, that has no provider
// for GPUs; empty if it has one, or the system looks for the library.
func WithoutCUDA(library string) string {
	if filepath.Base(library) == library {
		return ""
	}
	provider := filepath.Join(filepath.Dir(library), cudaProvider)
	if _, err := os.Stat(provider); err == nil {
		return ""
	}
	return fmt.Sprintf("this ONNX Runtime has no CUDA execution provider: there is no %s; install it with `make deps GPU=1` or as the wheel onnxruntime-gpu, "+
		"and name its library with --onnxruntime-library", provider)
}
