package worker

import (
	"context"
	"errors"
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
	"github.com/nereid-serving/nereid/services/worker/internal/batches"
)

// Config configures a worker. A field with a name is a flag, and a setting of
// that name in files and in the environment; its parser needs the variable
// onnxruntime, see [RuntimeLibrary]. Others keep what [Default] has given them.
type Config struct {
	// ID names this worker among the others; it is its key in the bucket workers
	// and the owner of its keys in assignments and instances. It has no slash.
	ID string `kong:"-"`
	// Version is the release, as others see it.
	Version string `kong:"-"`
	// Address is where gateways in other processes reach the worker's tensor
	// service, as they dial it; empty in one process.
	Address string `kong:"-"`
	// Pool is the pool that the worker belongs to; empty in one process.
	Pool string `kong:"-"`
	// Device is what the worker runs models on. Its kind is KindCPU or
	// KindGPU; KindAuto is a CPU.
	Device Device `kong:"-"`
	// Cores is how many cores the worker may use; 0 is as many as the process
	// may, by the machine and the limits of its container. GOMAXPROCS follows
	// from it and from the number of instances, unless the variable of that
	// name is set.
	Cores int `kong:"-"`
	// ReloadLinger is for how long the old generation of a version serves on
	// after the new one is ready. It covers the time in which gateways learn
	// of the new one; shorter, and requests on their way are refused.
	ReloadLinger time.Duration `kong:"-"`
	// DrainTimeout is how long requests may take when the worker stops;
	// after that they are canceled.
	DrainTimeout time.Duration `kong:"-"`
	// LeaveTimeout is how long a worker that stops serves on until its models are
	// ready on other workers; 0 does not wait.
	LeaveTimeout time.Duration `kong:"-"`
	// Restarts is how often this worker was started again, and LastExit how its
	// incarnation before ended, for people who look at the cluster.
	Restarts int    `kong:"-"`
	LastExit string `kong:"-"`

	// LoadConcurrency is how many model versions are loaded at the same time; the instances of
	// one count as one load. When all that was assigned at the start serves, an engine in this
	// process loads at most half as many as there are cores: requests would feel more.
	LoadConcurrency int `name:"model-load-thread-count" default:"4" group:"Models" help:"How many model versions are loaded at the same time."`
	LoadRetries     int `name:"model-load-retry-count" default:"0" group:"Models" help:"How often a failed load of a model version is retried."`

	ExecutionLog string `name:"execution-log" placeholder:"FILE" group:"Models" help:"Log a line of JSON to FILE for each request whose execution starts or ends, for audits; at half a GiB the file is renamed to FILE.1 and a new one is started."`

	Cache Cache `embed:""`

	// Label are the labels by which pools choose their workers.
	Label []string `name:"label" sep:"none" placeholder:"KEY=VALUE" group:"Models" help:"A label that models and pools can require; repeat the flag for several."`
	// MemoryBudget limits how much of the device's memory instances may use: the registry assigns no more.
	MemoryBudget string `name:"memory-budget" default:"90%" placeholder:"SIZE" group:"Models" help:"Memory for models: a part of the container's or machine's memory, such as 90%, a size such as 8GiB, or 0 for no limit. A model that does not fit waits, with a cause."`
	// BatchMemory limits the inputs of batches that run or are about to: see [infer.Held].
	BatchMemory string `name:"batch-memory" default:"25%" placeholder:"SIZE" group:"Models" help:"Memory for the inputs of a worker's batches, in the form of --memory-budget. If it is short, batches first shrink, then wait, and then new requests are refused with memory_pressure. Gathering the inputs takes as much again, and so may outputs."`

	// PinnedMemory limits the host memory that GPUs read and write directly.
	PinnedMemory int64 `name:"pinned-memory-pool-byte-size" default:"268435456" placeholder:"BYTES" group:"Models" help:"Pinned host memory, which GPUs read and write directly. Beyond it the driver copies through its own memory."`

	// OnnxRuntimeLibrary is opened when the first model needs it.
	OnnxRuntimeLibrary string   `name:"onnxruntime-library" varies:"" default:"${onnxruntime}" placeholder:"FILE" group:"Backends" help:"ONNX Runtime's shared library, 1.24 or newer; by default the one that make deps fetched, otherwise the system's."`
	BackendConfig      []string `name:"backend-config" sep:"none" placeholder:"BACKEND,KEY=VALUE" group:"Backends" help:"A setting of a backend, or of all without a name: onnxruntime has enable-global-threadpool, intra_op_thread_count, inter_op_thread_count, openvino-library, cuda-libraries, engine-cache and default-max-batch-size, python has python-path, stub-timeout-seconds, stub-memory-bytes, stub-cpus, stub-rights and stub-user, of which Python-based backends have the first four; repeat the flag for several."`
	BackendDirectory   string   `name:"backend-directory" placeholder:"DIR" group:"Backends" help:"Directory of Python-based backends: NAME/model.py in it is the code of all models with backend NAME. It is read at the start."`
	HostPolicy         []string `name:"host-policy" sep:"none" placeholder:"POLICY,KEY=VALUE" group:"Backends" help:"The cores of instances of a host policy, such as cpu: cpu-cores=0-3 or numa-node=0; repeat the flag for several."`
}

// Device is one device of a machine.
type Device struct {
	Kind modelconfig.DeviceKind
	// Number distinguishes the devices of a kind, from 0.
	Number int32
	// UUID identifies a GPU, or a part of one that is a device of its own; if it is empty, Number does.
	UUID string
}

// Default returns the flags' defaults: one worker for the whole machine.
func Default() Config {
	return Config{
		ID:                 "worker",
		ReloadLinger:       time.Second,
		DrainTimeout:       30 * time.Second,
		LoadConcurrency:    4,
		Cache:              Cache{Concurrency: 8, StallTimeout: 120},
		MemoryBudget:       "90%",
		BatchMemory:        "25%",
		PinnedMemory:       256 << 20,
		OnnxRuntimeLibrary: RuntimeLibrary(),
	}
}

// cores returns how many cores the worker may use.
func (c Config) cores() int {
	if c.Cores == 0 {
		return runtime.GOMAXPROCS(0) // not raised yet: see procs
	}
	return c.Cores
}

// Validate returns an error with the reason config_invalid that names the setting and its valid values.
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
	case c.PinnedMemory < 0:
		return errs.New(errs.ConfigInvalid, "--pinned-memory-pool-byte-size is %d: give 0 or more", c.PinnedMemory)
	case c.Cache.Bytes < 0:
		return errs.New(errs.ConfigInvalid, "--cache-bytes is %d: give the bytes that the cache may hold, or 0 for what the disk has", c.Cache.Bytes)
	case c.Cache.Concurrency < 1:
		return errs.New(errs.ConfigInvalid, "--download-concurrency is %d: give at least 1", c.Cache.Concurrency)
	case c.Cache.StallTimeout < 0:
		return errs.New(errs.ConfigInvalid, "--download-stall-timeout-secs is %d: give 0 or more", c.Cache.StallTimeout)
	}
	_, labelsErr := c.labels()
	_, budgetErr := c.memoryBudget()
	_, batchErr := c.batchMemory()
	_, policiesErr := c.hostPolicies()
	return errors.Join(labelsErr, budgetErr, batchErr, c.checkBackends(), policiesErr)
}

// Deps are the dependencies of a worker. All but Log and Metrics are required.
type Deps struct {
	Bus       *bus.Bus
	Scheduler infer.Scheduler
	Responder infer.Responder
	// Calls handles models' calls of other models.
	Calls infer.Caller
	// Control loads and unloads models on behalf of models.
	Control infer.Control
	Clock   mono.Clock
	// Batches is the table of a [Remote]; nil creates one for a scheduler in this process.
	Batches *batches.Table
	// MayStart reports whether a batch that arrived at the given time may still start; nil means always.
	MayStart func(accepted mono.Time) bool
	// PipelinedBatches is how many batches each instance accepts beyond those that it runs, so that it need not wait
	// for a round trip to the scheduler.
	PipelinedBatches int
	// Settle is called when the worker runs nothing any more. It waits until others have fetched what it has for them
	// and know that it has ended; it returns soon after its context is done. Nil means that nothing is retained.
	Settle func(context.Context)
	// Log and Metrics may be nil.
	Log     *zap.Logger
	Metrics prometheus.Registerer
	// Pool provides the memory of batches and outputs.
	Pool *tensor.Pool
}

func (d Deps) validate() error {
	if d.Bus == nil || d.Scheduler == nil || d.Responder == nil || d.Calls == nil || d.Control == nil || d.Clock == nil || d.Pool == nil {
		return errs.New(errs.Bug, "the worker was made without a bus, scheduler, responder, way to other models, clock or pool")
	}
	return nil
}
