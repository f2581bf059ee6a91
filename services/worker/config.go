package worker

import (
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// Config configures a worker.
type Config struct {
	// ID names this worker among the others; it is its key in the buckets
	// workers and assignments.
	ID string
	// Labels are what pools choose their workers by.
	Labels map[string]string
	// Device is what the worker runs models on. Its kind is KindCPU or
	// KindGPU; KindAuto is a CPU.
	Device Device
	// Cores is how many cores the worker may use; 0 is as many as the process
	// may, by the machine and the limits of its container. GOMAXPROCS follows
	// from it and from the number of instances, unless the variable of that
	// name is set.
	Cores int
	// OnnxRuntimeLibrary is the path or name of ONNX Runtime's library. It is
	// opened when the first model needs it.
	OnnxRuntimeLibrary string
	// Backends are settings of backends by their names, under the names that
	// --backend-config has for them.
	Backends map[string]map[string]string
	// HostPolicies are settings of host policies by their names, under the
	// names that --host-policy has for them: cpu-cores or numa-node.
	HostPolicies map[string]map[string]string
	// LoadConcurrency is how many models are loaded at the same time. When
	// all that was assigned at the start serves, it is at most half as many
	// as there are cores: what serves would feel more.
	LoadConcurrency int
	// LoadRetries is how often a load that fails is begun again.
	LoadRetries int
	// ReloadLinger is for how long the old content of a version serves on
	// after the new one is ready. It covers the time in which gateways learn
	// of the new one; shorter, and requests on their way are refused.
	ReloadLinger time.Duration
	// DrainTimeout is how long requests may take when the worker stops;
	// after that they are cancelled.
	DrainTimeout time.Duration
	// LedgerSize is how many finished executions are remembered.
	LedgerSize int
}

// Device is one device of a machine.
type Device struct {
	Kind modelconfig.DeviceKind
	// Number tells the devices of a kind apart, from 0.
	Number int32
}

// Default gives one worker for the whole machine.
func Default() Config {
	return Config{
		ID:                 "worker",
		OnnxRuntimeLibrary: "libonnxruntime.so",
		LoadConcurrency:    4,
		ReloadLinger:       time.Second,
		DrainTimeout:       30 * time.Second,
		LedgerSize:         4096,
	}
}

// cores is how many cores the worker may use.
func (c Config) cores() int {
	if c.Cores == 0 {
		return runtime.GOMAXPROCS(0) // not raised yet: see procs
	}
	return c.Cores
}

// Validate returns an error of the reason config_invalid that names the
// setting and what it may be.
func (c Config) Validate() error {
	switch {
	case c.ID == "":
		return errs.New(errs.ConfigInvalid, "the worker needs an id")
	case c.Device.Kind > modelconfig.KindCPU || c.Device.Number < 0:
		return errs.New(errs.ConfigInvalid, "a worker cannot run on device %d of kind %d: give a CPU or a GPU by its number from 0", c.Device.Number, c.Device.Kind)
	case c.Cores < 0:
		return errs.New(errs.ConfigInvalid, "a worker cannot have %d cores: give at least 1, or 0 for all", c.Cores)
	case c.LoadConcurrency < 1:
		return errs.New(errs.ConfigInvalid, "a worker cannot load %d models at a time: give at least 1", c.LoadConcurrency)
	case c.LoadRetries < 0:
		return errs.New(errs.ConfigInvalid, "a load cannot be repeated %d times: give 0 or more", c.LoadRetries)
	case c.ReloadLinger < 0 || c.DrainTimeout < 0:
		return errs.New(errs.ConfigInvalid, "the worker's reload linger (%v) and drain timeout (%v) cannot be negative", c.ReloadLinger, c.DrainTimeout)
	case c.LedgerSize < 1:
		return errs.New(errs.ConfigInvalid, "the worker's ledger cannot hold %d executions: give at least 1", c.LedgerSize)
	}
	_, err := c.backendOptions()
	return err
}

// Deps are what a worker works with. All but Log and Metrics are required.
type Deps struct {
	Bus       *bus.Bus
	Scheduler infer.Scheduler
	Responder infer.Responder
	Clock     mono.Clock
	// Log and Metrics may be nil.
	Log     *zap.Logger
	Metrics prometheus.Registerer
	// Pool gives the memory of batches and outputs.
	Pool *tensor.Pool
}

func (d Deps) validate() error {
	if d.Bus == nil || d.Scheduler == nil || d.Responder == nil || d.Clock == nil || d.Pool == nil {
		return errs.New(errs.Bug, "the worker was made without a bus, scheduler, responder, clock or pool")
	}
	return nil
}
