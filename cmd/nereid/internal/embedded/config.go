package embedded

import (
	"github.com/nereid-serving/nereid/libs/config"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/process"
	"github.com/nereid-serving/nereid/services/gateway"
	"github.com/nereid-serving/nereid/services/registry"
	"github.com/nereid-serving/nereid/services/scheduler"
	"github.com/nereid-serving/nereid/services/worker"
)

// Config configures the process and its services. A field with a name is a flag,
// and a setting of that name in files and in the environment.
type Config struct {
	// Models are served as they lie there; see package layout.
	Models []string `arg:"" optional:"" sep:"none" name:"model" help:"Model file, NAME=FILE, directory of models, or model repository."`

	Registry registry.Config `embed:""`
	Worker   worker.Config   `embed:""`

	ID          string        `name:"id" default:"triton" group:"Server" help:"Name of the server in its metadata."`
	ExitOnError config.Switch `name:"exit-on-error" default:"true" group:"Server" help:"End the process when a model cannot be loaded at the start."`
	GPUs        string        `name:"gpus" default:"auto" placeholder:"GPUS" group:"Server" help:"GPUs of NVIDIA to run models on, each in a worker process of its own: auto is all that there are, where ONNX Runtime's library is one for GPUs; none; or their numbers, such as 0,1."`
	Watch       bool          `name:"watch" group:"Models" help:"Load a model anew when one of its files is saved, for work on models in local directories: looks at all files five times a second."`
	Data        string        `name:"data" placeholder:"DIR" group:"Server" help:"Directory for the state of the control plane. Without it the state is temporary."`

	Gateway   gateway.Config        `embed:""`
	Admin     process.AdminSettings `embed:""`
	Host      process.HostSettings  `embed:""`
	Scheduler scheduler.Config      `embed:""`

	Version string `kong:"-"`
	// LogFlags have worker processes log as this process does.
	LogFlags []string `kong:"-"`
	// Logs is what the process's log is written by. It may be nil; then clients cannot
	// change its settings.
	Logs *obs.Log `kong:"-"`
}

// Default returns the flags' defaults.
func Default() Config {
	on := config.Switch{On: true}
	return Config{
		Registry: registry.Default(), Worker: worker.Default(), Gateway: gateway.Default(), Scheduler: scheduler.Default(),
		ID: "triton", ExitOnError: on, GPUs: autoGPUs,
		Admin: process.AdminSettings{AllowMetrics: on, MetricsPort: 8002},
		Host:  process.HostSettings{CPUMetrics: on, GPUMetrics: on, MetricsPeriod: 2000},
	}
}

// Validate returns an error of the reason config_invalid that names the
// setting and what it may be.
func (c Config) Validate() error {
	_, err := c.complete()
	return err
}

// complete gives the services what they have from the process, checks all
// settings, and returns the endpoint of the metrics.
func (c *Config) complete() (process.Admin, error) {
	c.Gateway.ServerName = c.ID
	if c.Gateway.Policy == "" {
		c.Gateway.Policy = c.Registry.Policy // in force before the registry could publish it
	}
	for _, version := range []*string{&c.Gateway.Version, &c.Registry.Version, &c.Scheduler.Version, &c.Worker.Version} {
		*version = c.Version
	}
	admin, err := c.Admin.Admin(c.Gateway.AdminAddress())
	if err == nil && c.Watch {
		err = c.Registry.Watch()
	}
	if err == nil {
		c.Registry.Backends, err = worker.Backends(c.Worker.BackendDirectory)
	}
	if err == nil {
		err = c.Registry.SetMaxBatchSize(c.Worker.BackendConfig)
	}
	if err == nil && len(c.Registry.Repositories)+len(c.Models) == 0 {
		err = errs.New(errs.ConfigInvalid, "nothing to serve: name a model file, a directory of models, or a repository by --model-repository=DIR")
	}
	for _, part := range []interface{ Validate() error }{c.Registry, c.Scheduler, c.Worker, c.Gateway, admin, c.Host.Host()} {
		if err == nil {
			err = part.Validate()
		}
	}
	if err == nil {
		_, err = c.gpuNumbers()
	}
	return admin, err
}
