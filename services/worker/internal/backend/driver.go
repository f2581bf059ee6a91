package backend

import (
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/cores"
)

// Driver opens a backend. Each backend's package has one for the backend that libs/backends describes under the same
// name.
type Driver struct {
	Name string
	// Check returns what is wrong with settings from --backend-config, with the reason config_invalid. If Check is
	// nil, the backend has no settings.
	Check func(settings map[string]string) error
	// Open opens the backend. It is called when a model first needs it, at most
	// once before it is closed.
	Open func(Environment) (Backend, error)
}

// Environment is what a backend is opened with.
type Environment struct {
	// Settings are those of --backend-config; the driver's Check has accepted them.
	Settings map[string]string
	// Pool provides the memory of batches and outputs.
	Pool *tensor.Pool
	// Cores is how many cores the worker may use.
	Cores int
	// HostPolicies are the cores of the policies that instance groups name. An unknown policy pins nothing.
	HostPolicies map[string]cores.Set
	// RunInC is called with the number of additional instances that run in C; negative when they end. Each occupies
	// one of Go's processors while it runs.
	RunInC func(n int)
	// Pinned limits the pinned host memory that GPUs copy from and to; nil has none.
	Pinned *PinnedMemory
	// DeviceFailed is called with the cause when the device of the process can run nothing until the process
	// restarts; it may be nil.
	DeviceFailed func(error)
	// Control loads and unloads models on behalf of models.
	Control infer.Control
}
