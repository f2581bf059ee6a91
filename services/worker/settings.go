package worker

import (
	"time"

	"github.com/nereid-serving/nereid/libs/config"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
)

// Settings are a worker's as an operator gives them: its flags, by the names
// that they have in the environment and in files too. Whoever parses them
// gives the variable onnxruntime, see [RuntimeLibrary].
type Settings struct {
	LoadThreads int `name:"model-load-thread-count" default:"4" group:"Models" help:"How many model versions are loaded at the same time."`
	LoadRetries int `name:"model-load-retry-count" default:"0" group:"Models" help:"How often the load of a model version that fails is tried again."`

	ExecutionLog string `name:"execution-log" placeholder:"FILE" group:"Models" help:"Write a line of JSON to FILE for each request whose execution begins or ends, for audits; at half a GiB it is renamed to FILE.1 and begun anew."`

	CacheDir            string `name:"cache-dir" placeholder:"DIR" group:"Models" help:"Where models from object stores are kept; workers of one host may share it. Without it, nereid/models in the user's directory for caches."`
	CacheBytes          int64  `name:"cache-bytes" default:"0" group:"Models" help:"Most bytes of models from object stores that are kept; the longest unused are removed first. 0 is what the disk has."`
	DownloadConcurrency int    `name:"download-concurrency" default:"8" group:"Models" help:"How many parts of models are fetched from object stores at the same time."`
	DownloadPatience    int    `name:"download-patience-secs" default:"120" group:"Models" help:"How long a fetch from an object store that does not get on is tried again before the load fails, in seconds."`

	Label        []string `name:"label" sep:"none" placeholder:"KEY=VALUE" group:"Models" help:"A label by which models and pools choose this worker; repeat the flag for several."`
	MemoryBudget string   `name:"memory-budget" default:"90%" placeholder:"SIZE" group:"Models" help:"What models may take of the memory: a part of what the container or the machine has, such as 90%, a size such as 8GiB, or 0 for no bound. A model that does not fit waits, with a cause."`

	Library       string   `name:"onnxruntime-library" varies:"" default:"${onnxruntime}" placeholder:"FILE" group:"Backends" help:"ONNX Runtime's shared library, 1.24 or newer: the one that make deps fetched, or else the system's."`
	BackendConfig []string `name:"backend-config" sep:"none" placeholder:"BACKEND,KEY=VALUE" group:"Backends" help:"A setting of a backend, or of all without a name: onnxruntime has enable-global-threadpool, intra_op_thread_count, inter_op_thread_count and default-max-batch-size; repeat the flag for several."`
	HostPolicy    []string `name:"host-policy" sep:"none" placeholder:"POLICY,KEY=VALUE" group:"Backends" help:"The cores of instances of a host policy, such as cpu: cpu-cores=0-3 or numa-node=0; repeat the flag for several."`
}

// Configure puts the settings into the configuration. Errors have the reason
// config_invalid.
func (s *Settings) Configure(c *Config) (err error) {
	if c.Backends, err = config.Named("backend-config", s.BackendConfig); err != nil {
		return err
	}
	if c.HostPolicies, err = config.Named("host-policy", s.HostPolicy); err != nil {
		return err
	}
	if c.Labels, err = ParseLabels(s.Label); err != nil {
		return err
	}
	if c.MemoryBudget, err = ParseBudget(s.MemoryBudget); err != nil {
		return err
	}
	for key, value := range c.Backends[""] {
		if key != modelconfig.MaxBatchSizeSetting {
			return errs.New(errs.ConfigInvalid, "--backend-config=,%s=%s: backends have one setting in common, %s", key, value, modelconfig.MaxBatchSizeSetting)
		}
	}
	delete(c.Backends, "") // the registry completes configurations by it
	c.LoadConcurrency, c.LoadRetries = s.LoadThreads, s.LoadRetries
	c.OnnxRuntimeLibrary, c.ExecutionLog = s.Library, s.ExecutionLog
	c.Cache = Cache{
		Dir: s.CacheDir, Bytes: s.CacheBytes, Concurrency: s.DownloadConcurrency,
		Patience: time.Duration(s.DownloadPatience) * time.Second,
	}
	return nil
}
