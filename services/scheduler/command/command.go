// Package command is the scheduler's program: its settings, and its wiring to the other services.
package command

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/alecthomas/kong"
	"google.golang.org/grpc"

	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/identity"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/plane/link"
	"github.com/nereid-serving/nereid/libs/plane/schedule"
	"github.com/nereid-serving/nereid/libs/process"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/scheduler"
)

// Program returns the scheduler's program.
func Program() process.Program {
	c := &Command{Scheduler: scheduler.Default()}
	return process.Program{
		Name: "scheduler", Help: "The scheduler decides, for one pool, which request runs when and where.",
		Vars:     kong.Vars{"metrics_port": "8012", "metrics_address": "every interface", "listen": "0.0.0.0:8011"},
		Settings: c, Log: &c.Process.Log, Run: c.Run, StopTimeout: c.StopTimeout,
	}
}

// Command are the settings.
type Command struct {
	Pool      string               `name:"pool" default:"default" group:"Cluster" help:"Pool of workers to decide for. Several schedulers of one pool stand by for each other."`
	Peers     process.PeerSettings `embed:""`
	Scheduler scheduler.Config     `embed:""`
	Process   process.Settings     `embed:""`
}

// Validate rejects impossible settings, with the reason config_invalid.
func (c *Command) Validate() error {
	if err := errors.Join(c.Peers.Validate(), c.Process.Validate()); err != nil {
		return err
	}
	return c.config("id", "").Validate()
}

func (c *Command) config(id, address string) scheduler.Config {
	config := c.Scheduler
	config.ID, config.Pool, config.Address, config.Version = id, c.Pool, address, process.Release
	return config
}

// StopTimeout is how long the program takes at most to stop: see [process.Program].
func (c *Command) StopTimeout() time.Duration { return c.Scheduler.StopTimeout() + process.StopTimeout }

// Run runs one scheduler of the pool.
func (c *Command) Run(ctx context.Context) error {
	return c.Process.Serve(ctx, "0.0.0.0", c.Service)
}

// Service creates the service within a process.
func (c *Command) Service(ctx context.Context, p *process.Process) (process.Service, error) {
	peers, err := p.Listen(ctx, &c.Peers)
	if err != nil {
		return process.Service{}, err
	}
	config, clock := c.config(p.ID, peers.Address()), mono.New()
	workers := control.WorkerIncarnations(p.Bus)
	gateways := control.GatewayIncarnations(p.Bus)
	streams := schedule.NewServer(schedule.Config{
		ID: p.ID, Pool: c.Pool, Release: process.Release, Clock: clock, Log: p.Log, Tensors: tensor.NewPool(keepMemory),
		Owners: identity.Owners{identity.Worker: workers.Owner, identity.Gateway: gateways.Owner},
		Window: schedule.Window{
			Messages: bound(int64(config.MaxQueuedRequests), math.MaxInt32), Bytes: bound(config.MaxQueuedBytes, math.MaxInt64),
		},
	})
	s, err := scheduler.New(config, scheduler.Deps{
		Bus: p.Bus, Clock: clock, Responder: streams, Streams: streams, Metrics: p.Metrics, Log: p.Log,
	})
	if err != nil {
		return process.Service{}, err
	}
	server := grpc.NewServer(link.ServerOptions(p.Listening, p.Log)...)
	streams.Register(server)
	s.RegisterControl(server)
	return process.Service{
		Parts: []lifecycle.Part{
			process.Processors(),
			{Name: "peers", Run: func(ctx context.Context) error { return peers.Serve(ctx, server) }},
			{Name: "workers' identities", Run: workers.Run},
			{Name: "gateways' identities", Run: gateways.Run},
			{Run: s.Run},
		},
		Ready: func() error { return process.NotReady(s.Ready(), "the models are not known yet") },
	}, nil
}

// keepMemory is how many bytes of free memory the process retains for the small tensors that come with requests.
const keepMemory = 64 << 20

// bound returns a limit, or none if the limit is 0.
func bound(limit, none int64) int64 {
	if limit == 0 {
		return none
	}
	return limit
}
