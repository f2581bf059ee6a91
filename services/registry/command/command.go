// Package command is the registry as a program of its own: its settings, and
// how it is wired to the other services.
package command

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/alecthomas/kong"
	"google.golang.org/grpc"

	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/plane/link"
	"github.com/nereid-serving/nereid/libs/process"
	"github.com/nereid-serving/nereid/services/registry"
)

// Program is the registry's.
func Program() process.Program {
	c := &Command{Registry: registry.Default()}
	return process.Program{
		Name: "registry", Help: "The registry knows which models exist and decides where they run.",
		Vars:     kong.Vars{"metrics_port": "8032", "metrics_address": "every interface", "listen": "0.0.0.0:8031"},
		Settings: c, Log: &c.Process.Log, Run: c.Run, StopTimeout: c.StopTimeout,
	}
}

// Command are the settings.
type Command struct {
	Registry      registry.Config      `embed:""`
	BackendConfig []string             `name:"backend-config" sep:"none" placeholder:"BACKEND,KEY=VALUE" group:"Models" help:"A setting of a backend by which configurations are completed: default-max-batch-size, of onnxruntime or, without a name, of all; repeat the flag for several."`
	Peers         process.PeerSettings `embed:""`
	Process       process.Settings     `embed:""`
}

// Validate refuses what cannot be, with the reason config_invalid.
func (c *Command) Validate() error {
	if err := errors.Join(c.Peers.Validate(), c.Process.Validate()); err != nil {
		return err
	}
	_, err := c.config("id", "")
	return err
}

func (c *Command) config(id, address string) (registry.Config, error) {
	config := c.Registry
	config.Holder, config.Address = id, address
	if err := config.SetMaxBatchSize(c.BackendConfig); err != nil {
		return config, err
	}
	return config, errors.Join(config.Complete(), config.Validate())
}

// StopTimeout is how long the program takes at most to stop: see [process.Program].
func (c *Command) StopTimeout() time.Duration { return c.Registry.StopTimeout() + process.StopTimeout }

// Run runs one replica of the registry.
func (c *Command) Run(ctx context.Context) error {
	return c.Process.Serve(ctx, "0.0.0.0", c.Service)
}

// Service makes the service within a process.
func (c *Command) Service(ctx context.Context, p *process.Process) (process.Service, error) {
	peers, err := p.Listen(ctx, &c.Peers)
	if err != nil {
		return process.Service{}, err
	}
	config, err := c.config(p.ID, peers.Address())
	if err != nil {
		return process.Service{}, err
	}
	config.Version = process.Release
	// Files given through the load API pass through here on their way to the
	// workers; what is known of them is in the store.
	if config.Artifacts, err = os.MkdirTemp("", "nereid-artifacts-"); err != nil {
		return process.Service{}, errs.Wrap(errs.ConfigInvalid, err, "there is no directory for files that are given through the load API: set TMPDIR to one")
	}
	config.ShareArtifacts = true
	r, err := registry.New(config, registry.Deps{
		Bus: p.Bus, Log: p.Log,
		Queues: func(ctx context.Context, address string) ([]infer.Queue, error) {
			return control.Queues(ctx, address, control.Options{TLS: p.Dialing})
		},
		Complete: func(ctx context.Context, address string, d control.Draft) ([]byte, error) {
			return control.Complete(ctx, address, d, control.Options{TLS: p.Dialing})
		},
	})
	if err != nil {
		return process.Service{}, err
	}
	server := grpc.NewServer(link.ServerOptions(p.Listening, p.Log)...)
	r.RegisterControl(server)
	return process.Service{
		Parts: []lifecycle.Part{
			{Name: "peers", Run: func(ctx context.Context) error { return peers.Serve(ctx, server) }},
			{Run: func(ctx context.Context) error { return errors.Join(r.Run(ctx), os.RemoveAll(config.Artifacts)) }},
		},
		Ready: func() error { return process.NotReady(r.Ready(), "the models are not published yet") },
	}, nil
}
