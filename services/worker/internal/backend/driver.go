package backend

import (
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/cores"
)

// Driver opens a backend. Each backend's package has one for the backend that
// libs/backends describes under its name.
type Driver struct {
	Name string
	// Check returns what is wrong with settings of the names that
	// --backend-config has, with the reason config_invalid. nil has no settings.
	Check func(settings map[string]string) error
	// Open opens the backend. It is called when a model first needs it, at most
	// once before it is closed.
	Open func(Environment) (Backend, error)
}

// Environment is what a backend is opened with.
type Environment struct {
	// Settings are those of --backend-config; the driver's Check has taken them.
	Settings map[string]string
	// Pool gives the memory of batches and outputs.
	Pool *tensor.Pool
	// Cores is how many cores the worker may use.
	Cores int
	// HostPolicies are the cores of the policies that instance groups name. A
	// policy that is not there pins nothing.
	HostPolicies map[string]cores.Set
	// RunInC is told that so many instances more run in C; it is negative when they end.
	// Each holds a processor of Go's while it runs.
	RunInC func(n int)
	// Pinned bounds the memory of the host that GPUs copy from and to; nil has none.
	Pinned *PinnedMemory
	// DeviceFailed is told that the device of the process runs nothing any more until the
	// process begins anew, and why; it may be nil.
	DeviceFailed func(error)
	// Control loads and unloads models for models.
	Control infer.Control
}
