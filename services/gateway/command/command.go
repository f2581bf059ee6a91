// Package command implements the gateway as a separate program: its settings, and how it is wired to the other
// services.
package command

import (
	"context"
	"errors"
	"time"

	"github.com/alecthomas/kong"

	"github.com/nereid-serving/nereid/libs/process"
	"github.com/nereid-serving/nereid/services/gateway"
)

// Program returns the gateway's program.
func Program() process.Program {
	c := new(Command)
	return process.Program{
		Name: "gateway", Help: "The gateway is what clients speak to, over HTTP and gRPC.",
		Vars:     kong.Vars{"metrics_port": "8002", "metrics_address": "that of HTTP"},
		Settings: c, Log: &c.Process.Log, Run: c.Run, StopTimeout: c.StopTimeout,
	}
}

// Command are the program's settings.
type Command struct {
	ServerName string                 `name:"server-name" default:"triton" group:"Server" help:"Name of the server in its metadata."`
	Gateway    gateway.Config         `embed:""`
	Tensors    process.TensorSettings `embed:""`
	Process    process.Settings       `embed:""`
}

// Validate returns what is wrong with the settings, with the reason config_invalid.
func (c *Command) Validate() error {
	return errors.Join(c.Gateway.Validate(), c.Process.Validate())
}

func (c *Command) config(id string) gateway.Config {
	config := c.Gateway
	config.ID, config.ServerName, config.Version = id, c.ServerName, process.Release
	return config
}

// StopTimeout is the longest time that the program takes to stop: see [process.Program].
func (c *Command) StopTimeout() time.Duration { return c.Gateway.StopTimeout() + process.StopTimeout }

// Run runs one gateway.
func (c *Command) Run(ctx context.Context) error {
	return c.Process.Serve(ctx, c.Gateway.AdminAddress(), c.service)
}
