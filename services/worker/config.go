package worker

import (
	"runtime"
	"strings"
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
	// ID names this worker among the others; it is its key in the bucket workers
	// and the owner of its keys in assignments and instances. It has no slash.
	ID string
	// Version is the release, as others see it.
	Version string
	// Labels are what pools choose their workers by.
	Labels map[string]string
	// Address is where gateways in other processes reach the worker's tensor
	// service, as they dial it; empty in one process.
	Address string
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
	// Cache is where models from object stores are kept.
	Cache Cache
	// LeaveTimeout is for how long a worker that is told to stop goes on, until
	// its models are ready on other workers; 0 is not to wait for that.
	LeaveTimeout time.Duration
	// MemoryBudget bounds what instances may take of the device's memory, in
	// bytes: the registry assigns no more. 0 is no bound.
	MemoryBudget uint64
	// Restarts is how often this worker was started again, and LastExit how its
	// life before ended, for people who look at the cluster.
	Restarts int
	LastExit string
	// LedgerSize is how many finished executions are remembered.
	LedgerSize int
	// ExecutionLog is a file for a line about each request whose execution
	// begins or ends; empty keeps none.
	ExecutionLog string
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
		Cache:              Cache{Concurrency: 8, Patience: 2 * time.Minute},
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
	case strings.Contains(c.ID, "/"):
		return errs.New(errs.ConfigInvalid, "the worker's id is %q: give one without a slash", c.ID)
	case c.Device.Kind > modelconfig.KindCPU || c.Device.Number < 0:
		return errs.New(errs.ConfigInvalid, "a worker cannot run on device %d of kind %d: give a CPU or a GPU by its number from 0", c.Device.Number, c.Device.Kind)
	case c.Cores < 0:
		return errs.New(errs.ConfigInvalid, "a worker cannot have %d cores: give at least 1, or 0 for all", c.Cores)
	case c.LoadConcurrency < 1:
		return errs.New(errs.ConfigInvalid, "a worker cannot load %d models at a time: give at least 1", c.LoadConcurrency)
	case c.LoadRetries < 0:
		return errs.New(errs.ConfigInvalid, "a load cannot be repeated %d times: give 0 or more", c.LoadRetries)
	case c.LeaveTimeout < 0:
		return errs.New(errs.ConfigInvalid, "a worker cannot wait %v until its models are ready elsewhere: give 0 or more", c.LeaveTimeout)
	case c.Restarts < 0:
		return errs.New(errs.ConfigInvalid, "--restarts is %d: give 0 or more", c.Restarts)
	case c.ReloadLinger < 0 || c.DrainTimeout < 0:
		return errs.New(errs.ConfigInvalid, "the worker's reload linger (%v) and drain timeout (%v) cannot be negative", c.ReloadLinger, c.DrainTimeout)
	case c.Cache.Bytes < 0:
		return errs.New(errs.ConfigInvalid, "--cache-bytes is %d: give the bytes that the cache may hold, or 0 for what the disk has", c.Cache.Bytes)
	case c.Cache.Concurrency < 1:
		return errs.New(errs.ConfigInvalid, "--download-concurrency is %d: give at least 1", c.Cache.Concurrency)
	case c.Cache.Patience < 0:
		return errs.New(errs.ConfigInvalid, "--download-patience-secs is %v: give 0 or more", c.Cache.Patience)
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
	// Fresh reports whether an order that came at the given time may still be
	// begun; nil is always.
	Fresh func(accepted mono.Time) bool
	// Ahead is how many orders each instance takes beyond those that it runs at a
	// time, so that it need not wait for the way to the scheduler and back.
	Ahead int
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
