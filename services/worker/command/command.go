// Package command is the worker's program: its settings, and its wiring to the other services.
package command

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/process"
	"github.com/nereid-serving/nereid/services/worker"
)

// Program returns the worker's program.
func Program() process.Program {
	c := &Command{Worker: worker.Default()}
	return process.Program{
		Name: "worker", Help: "The worker runs models on one device.",
		Vars: kong.Vars{
			"metrics_port": "8022", "metrics_address": "every interface", "listen": "0.0.0.0:8021", "onnxruntime": worker.RuntimeLibrary(),
		},
		Settings: c, Log: &c.Process.Log, Run: c.Run, StopTimeout: c.StopTimeout,
	}
}

// Command are the settings.
type Command struct {
	Device       string                 `name:"device" default:"cpu" placeholder:"DEVICE" group:"Server" help:"Device to run models on: cpu, or gpu with its number, such as gpu:0."`
	DeviceUUID   string                 `name:"device-uuid" placeholder:"UUID" group:"Server" help:"UUID of the GPU, or of the MIG device that stands for it, by which the driver is asked for its health and memory; nereid node gives it."`
	Cores        int                    `name:"cores" default:"0" group:"Server" help:"How many cores models may use; 0 is as many as the process may."`
	ExitTimeout  int                    `name:"exit-timeout-secs" default:"30" group:"Server" help:"How long requests that run may take when the worker stops, in seconds."`
	LeaveTimeout int                    `name:"leave-timeout-secs" default:"10" group:"Server" help:"How long a worker that stops goes on until its models are ready on others, in seconds. It does not wait if it is the only one, or while NATS is away."`
	Restarts     int                    `name:"restarts" default:"0" group:"Server" help:"How often this worker was started again, which nereid status shows; nereid node sets it."`
	LastExit     string                 `name:"last-exit" placeholder:"TEXT" group:"Server" help:"How the worker's incarnation before ended, which nereid status shows; nereid node sets it."`
	Worker       worker.Config          `embed:""`
	Pool         string                 `name:"pool" default:"default" group:"Cluster" help:"Pool that the worker belongs to."`
	Tensors      process.TensorSettings `embed:""`
	Peers        process.PeerSettings   `embed:""`
	Host         process.HostSettings   `embed:""`
	Process      process.Settings       `embed:""`
}

// Validate rejects impossible settings, with the reason config_invalid.
func (c *Command) Validate() error {
	if err := errors.Join(c.Peers.Validate(), c.Process.Validate(), c.Host.Host().Validate()); err != nil {
		return err
	}
	_, err := c.config("id", "")
	return err
}

func (c *Command) config(id, address string) (worker.Config, error) {
	config := c.Worker
	config.ID, config.Address, config.Version, config.Pool = id, address, process.Release, c.Pool
	config.Cores = c.Cores
	config.Restarts, config.LastExit = c.Restarts, strings.ToValidUTF8(c.LastExit, "�")
	var err error
	if config.Device, err = device(c.Device); err != nil {
		return config, err
	}
	config.Device.UUID = c.DeviceUUID
	if c.ExitTimeout < 0 || c.LeaveTimeout < 0 {
		return config, errs.New(errs.ConfigInvalid, "--exit-timeout-secs is %d and --leave-timeout-secs %d: want 0 or more", c.ExitTimeout, c.LeaveTimeout)
	}
	config.DrainTimeout, config.LeaveTimeout = time.Duration(c.ExitTimeout)*time.Second, time.Duration(c.LeaveTimeout)*time.Second
	if !infer.ValidPool(c.Pool) {
		return config, errs.New(errs.ConfigInvalid, "--pool=%s: give the name of a pool, without blanks, slashes, commas and =", c.Pool)
	}
	return config, config.Validate()
}

// device parses a kind and, after a colon, a number.
func device(text string) (d worker.Device, err error) {
	kind, number, numbered := strings.Cut(text, ":")
	switch kind {
	case "cpu":
		d.Kind = modelconfig.KindCPU
	case "gpu":
		d.Kind = modelconfig.KindGPU
	default:
		return d, errs.New(errs.ConfigInvalid, "--device=%s: want cpu, or gpu with its number, such as gpu:0", text)
	}
	if !numbered {
		return d, nil
	}
	n, err := strconv.ParseInt(number, 10, 32)
	if err != nil || n < 0 {
		return d, errs.New(errs.ConfigInvalid, "--device=%s: %q is no number of a device", text, number)
	}
	d.Number = int32(n)
	return d, nil
}

// StopTimeout is how long the program takes at most to stop: see [process.Program]. It ignores errors, as invalid
// settings never run.
func (c *Command) StopTimeout() time.Duration {
	config, _ := c.config("id", "")
	return config.StopTimeout() + process.StopTimeout
}

// Run runs one worker.
func (c *Command) Run(ctx context.Context) error {
	return c.Process.Serve(ctx, "0.0.0.0", c.service)
}
