package main

import (
	"cmp"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/cmd/nereid/internal/node"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/process"
)

// sidecar runs the workers of one machine.
type sidecar struct {
	ID          string `name:"node-id" placeholder:"ID" help:"Name of the node; its workers are called ID-cpu, ID-gpu0. Without it the host's name."`
	CPUWorkers  string `name:"cpu-workers" default:"machine" enum:"machine,numa,none" help:"Workers for CPUs: machine is one, numa one for each NUMA node, on its cores."`
	GPUWorkers  string `name:"gpu-workers" default:"auto" enum:"auto,none" help:"Workers for GPUs: auto is one for each that NVIDIA's driver knows."`
	Program     string `name:"worker" placeholder:"FILE" help:"The worker's program; without it the one beside this program."`
	Address     string `name:"worker-address" default:"0.0.0.0" help:"Address on which each worker listens for the other services, on a port of its own."`
	MetricsPort int    `name:"worker-metrics-port" default:"8022" help:"Port on which the first worker serves its metrics and health; the others follow it."`
	CrashBudget int    `name:"crash-budget" default:"10" help:"How often in a row a worker may end within a minute of its start; then its device is given up."`
	ExitTimeout int    `name:"exit-timeout-secs" default:"45" help:"How long workers may take to stop, in seconds; then they are killed. It should be more than their own --exit-timeout-secs."`
	KeepWorkers bool   `name:"keep-workers" help:"Let the workers run on when this process is killed. Otherwise they drain then."`

	Admin process.AdminSettings `kong:"embed,set='metrics_port=8042',set='metrics_address=every interface'"`
	Host  process.HostSettings  `embed:""`
	Log   process.LogSettings   `embed:""`

	Arguments []string `arg:"" optional:"" passthrough:"" name:"settings" help:"Flags of the workers, behind --."`
}

// Help shows examples.
func (sidecar) Help() string {
	return `Each device gets a worker of its own, which is started again when it ends. The environment and the flags behind -- are for all of them; a file of theirs is named there by --config. The first Ctrl-C or SIGTERM drains all workers.

Examples:

    nereid node -- --nats-url nats://nats:4222
    nereid node --cpu-workers numa --gpu-workers none -- --config worker.yaml --pool large`
}

// own are the flags of workers that the node gives each by itself.
func own() []string { return []string{"id", "device", "listen", "advertise", "metrics-port"} }

// workerArguments are those behind --.
func (s *sidecar) workerArguments() ([]string, error) {
	args := s.Arguments
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	for _, arg := range args {
		for _, name := range own() {
			if arg == "--"+name || strings.HasPrefix(arg, "--"+name+"=") {
				return nil, errs.New(errs.ConfigInvalid, "--%s is given to each worker by the node: leave it out behind --", name)
			}
		}
	}
	return args, nil
}

// Validate refuses what cannot be, with the reason config_invalid.
func (s *sidecar) Validate() error {
	admin, err := s.Admin.Admin("")
	if err != nil {
		return err
	}
	_, err = s.config()
	if err == nil && s.CPUWorkers == node.None && s.GPUWorkers == node.None {
		err = errs.New(errs.ConfigInvalid, "--cpu-workers and --gpu-workers are both none: leave one out")
	}
	return cmp.Or(err, admin.Validate(), s.Host.Host().Validate())
}

// Run runs the workers until ctx is done.
func (s *sidecar) Run(ctx context.Context, stdout io.Writer) error {
	log, closeLog, err := s.Log.Open()
	if err != nil {
		return err
	}
	defer closeLog()
	admin, err := s.Admin.Admin("0.0.0.0")
	if err != nil {
		return err
	}
	host := s.Host.Host()
	config, err := s.config()
	if err != nil {
		return err
	}
	metrics := obs.NewMetrics(process.Release, admin.Labels)
	devices, release, err := s.devices(metrics)
	if err != nil {
		return err
	}
	defer release()
	n, err := node.New(config, node.Deps{
		Devices: devices, Stdout: &together{to: stdout}, Stderr: &together{to: os.Stderr}, Metrics: metrics, Log: log,
	})
	if err != nil {
		return err
	}
	log.Info("started", zap.String("node", config.ID), zap.Int("workers", len(devices)))
	return lifecycle.Run(ctx,
		lifecycle.Part{Name: "metrics", Run: func(ctx context.Context) error {
			return admin.Serve(ctx, metrics, &process.Health{Ready: n.Ready}, log)
		}},
		lifecycle.Part{Name: "host", Run: func(ctx context.Context) error { return host.Watch(ctx, metrics, log) }},
		lifecycle.Part{Run: n.Run})
}

func (s *sidecar) config() (c node.Config, err error) {
	c = node.Default()
	if c.Arguments, err = s.workerArguments(); err != nil {
		return c, err
	}
	if c.ID = s.ID; c.ID == "" {
		if c.ID, err = os.Hostname(); err != nil {
			return c, errs.Wrap(errs.ConfigInvalid, err, "the host has no name: give the node one with --node-id")
		}
	}
	if c.Program, err = s.program(); err != nil {
		return c, err
	}
	c.Address, c.MetricsPort, c.Crashes, c.Outlive = s.Address, s.MetricsPort, s.CrashBudget, s.KeepWorkers
	c.Drain = time.Duration(s.ExitTimeout) * time.Second
	return c, c.Validate()
}

// program is where the worker's program is.
func (s *sidecar) program() (string, error) {
	path := s.Program
	if path == "" {
		this, err := os.Executable()
		if err != nil {
			return "", errs.Wrap(errs.ConfigInvalid, err, "it is unknown where this program is: say with --worker where the worker's is")
		}
		path = filepath.Join(filepath.Dir(this), "worker")
	}
	if _, err := exec.LookPath(path); err != nil {
		return "", errs.Wrap(errs.ConfigInvalid, err, "no worker's program at %s: say with --worker where it is", path)
	}
	return path, nil
}

// devices finds the machine's devices, and has the metrics show the GPUs.
func (s *sidecar) devices(metrics *obs.Metrics) (devices []node.Device, release func(), err error) {
	var gpus node.GPUs
	release = func() {}
	if s.GPUWorkers == "auto" {
		library, err := node.OpenNVML(nvml.New())
		if err != nil {
			return nil, nil, err
		}
		if library != nil {
			gpus, release = library, library.Close
			if s.Host.GPUMetrics.On {
				metrics.MustRegister(library)
			}
		}
	}
	devices, err = node.Find(s.CPUWorkers, "/sys/devices/system/node", gpus)
	return devices, release, err
}

// together lets several write to one writer, a write at a time.
type together struct {
	mu sync.Mutex
	to io.Writer // guarded by mu
}

// Write implements io.Writer.
func (t *together) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.to.Write(p)
}
