package onnxruntime

import (
	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

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
