package main

import (
	"cmp"
	"context"
	"io"
	"os"

	"github.com/alecthomas/kong"
	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/cmd/nereid/internal/embedded"
	"github.com/nereid-serving/nereid/libs/config"
	"github.com/nereid-serving/nereid/libs/process"
	"github.com/nereid-serving/nereid/services/gateway"
	"github.com/nereid-serving/nereid/services/registry"
	"github.com/nereid-serving/nereid/services/scheduler"
	"github.com/nereid-serving/nereid/services/worker"
)

// serve runs all services in one process. Its flags are Triton's where Triton
// has the setting.
type serve struct {
	Registry registry.Settings `embed:""`
	Worker   worker.Settings   `embed:""`

	ID          string        `name:"id" default:"triton" group:"Server" help:"Name of the server in its metadata."`
	ExitOnError config.Switch `name:"exit-on-error" default:"true" group:"Server" help:"End the process when a model cannot be loaded at the start."`
	Data        string        `name:"data" placeholder:"DIR" group:"Server" help:"Directory for the state of the control plane. Without it the state is temporary."`

	Gateway   gateway.Settings      `embed:""`
	Admin     process.AdminSettings `embed:""`
	Host      process.HostSettings  `embed:""`
	Scheduler scheduler.Settings    `embed:""`
	Log       process.LogSettings   `embed:""`

	// Triton's other flags.
	Idle    idle    `embed:""`
	Refused refused `embed:""`
}

// Help shows examples.
func (serve) Help() string {
	return `Triton's other flags are taken where they change nothing and refused where they would: docs/reference/cli.md lists them.

Examples:

    nereid serve --model-repository models/
    nereid serve --model-repository models/ --model-control-mode explicit --load-model digits
    nereid serve --model-repository models/ --http-port 9000 --allow-grpc false --log-verbose 1`
}

// Validate refuses flags whose effect is not there; the embedded settings are
// asked on their own.
func (s *serve) Validate(command *kong.Context) error { return checkEffects(command) }

// Run serves until ctx is done and everything has drained.
func (s *serve) Run(ctx context.Context, command *kong.Context, stdout io.Writer) error {
	s.Log.Misspelt = config.Misspelt(os.Environ(), command.Model)
	log, closeLog, err := s.Log.Open()
	if err != nil {
		return err
	}
	defer closeLog()
	if names := withoutEffect(command); len(names) > 0 {
		log.Info("flags have no effect", zap.Strings("flags", names), zap.String("reasons", "docs/reference/cli.md"))
	}
	c, err := s.config()
	if err != nil {
		return err
	}
	server, err := embedded.New(c, log, stdout)
	if err != nil {
		return err
	}
	return server.Run(ctx)
}

func (s *serve) config() (c embedded.Config, err error) {
	c = embedded.Default()
	s.Registry.Configure(&c.Registry)
	if err := c.Registry.Models.SetMaxBatchSize(s.Worker.BackendConfig); err != nil {
		return c, err
	}
	if err := cmp.Or(s.Worker.Configure(&c.Worker), s.Scheduler.Configure(&c.Scheduler), s.Gateway.Configure(&c.Gateway)); err != nil {
		return c, err
	}
	if c.Admin, err = s.Admin.Admin(s.Gateway.AdminAddress()); err != nil {
		return c, err
	}
	c.Host = s.Host.Host()
	c.Gateway.ServerName, c.Data, c.ExitOnError = s.ID, s.Data, s.ExitOnError.On
	for _, version := range []*string{&c.Version, &c.Gateway.Version, &c.Registry.Version, &c.Scheduler.Version, &c.Worker.Version} {
		*version = process.Release
	}
	return c, nil
}
