package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/cmd/nereid/internal/node"
	"github.com/nereid-serving/nereid/libs/gpu"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/process"
	"github.com/nereid-serving/nereid/services/worker/command"
)

// sidecar runs the workers of one machine.
type sidecar struct {
	Node  node.Config           `embed:""`
	Admin process.AdminSettings `kong:"embed,set='metrics_port=8042',set='metrics_address=every interface'"`
	Host  process.HostSettings  `embed:""`
	Log   process.LogSettings   `embed:""`
}

// Help shows examples.
func (sidecar) Help() string {
	return `Each device gets a worker of its own, which is started again when it ends. The environment and the flags behind -- are for all of them; a file of theirs is named there by --config. The first Ctrl-C or SIGTERM drains all workers.

Examples:

    nereid node -- --nats-url nats://nats:4222
    nereid node --cpu-workers numa --gpu-workers none -- --config worker.yaml --pool large`
}

// Validate refuses what cannot be, with the reason config_invalid.
func (s *sidecar) Validate() error {
	admin, err := s.Admin.Admin("")
	if err != nil {
		return err
	}
	_, err = s.Node.Complete()
	return errors.Join(s.Node.Validate(), err, admin.Validate(), s.Host.Host().Validate())
}

// Run runs the workers until ctx is done.
func (s *sidecar) Run(ctx context.Context, stdout io.Writer) error {
	logs, err := s.Log.Open()
	if err != nil {
		return err
	}
	defer logs.Close()
	log := logs.Logger
	admin, err := s.Admin.Admin("0.0.0.0")
	if err != nil {
		return err
	}
	host := s.Host.Host()
	config, err := s.Node.Complete()
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
		lifecycle.Part{Name: "log settings", Run: func(ctx context.Context) error { return followLog(ctx, config, logs) }},
		lifecycle.Part{Name: "host", Run: func(ctx context.Context) error { return host.Watch(ctx, metrics, log) }},
		lifecycle.Part{Run: n.Run})
}

// followLog has the node's log follow the cluster's settings as the logs of its workers do: by the
// NATS that their flags, files and environment name. Where these are wrong the workers say so.
func followLog(ctx context.Context, c node.Config, logs *obs.Log) error {
	program := command.Program()
	worker := program.Settings.(*command.Command)
	program.Log, program.Run = nil, func(ctx context.Context) error {
		err := worker.Process.Cluster.FollowLog(ctx, c.ID, logs)
		if err != nil {
			logs.Warn("the log does not follow the settings of the cluster", obs.Err(err)...)
		}
		return err
	}
	program.Execute(ctx, c.Given(), io.Discard, io.Discard, os.Environ())
	<-ctx.Done()
	return nil
}

// devices finds the machine's devices, and has the metrics show the GPUs.
func (s *sidecar) devices(metrics *obs.Metrics) (devices []node.Device, release func(), err error) {
	var gpus *gpu.Machine
	release = func() {}
	if s.Node.GPUWorkers == "auto" {
		if gpus, err = gpu.Open(nvml.New()); err != nil {
			return nil, nil, withoutGPUs(err)
		}
		if gpus != nil {
			release = gpus.Close
			if s.Host.GPUMetrics.On {
				metrics.MustRegister(gpus.Collector())
			}
		}
	}
	devices, err = node.Find(s.Node.CPUWorkers, "/sys/devices/system/node", gpus)
	return devices, release, withoutGPUs(err)
}

// withoutGPUs adds how to do without what cannot be asked.
func withoutGPUs(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w, or leave GPUs out with --gpu-workers=none", err)
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
