package main

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/process"
)

// natsServer runs the NATS server that nereid serve has inside, for the
// services of one machine.
type natsServer struct {
	Listen string              `name:"listen" default:"127.0.0.1:4222" placeholder:"HOST:PORT" help:"Address to listen on; port 0 is any free one. Anyone who can reach it can change what is served."`
	Data   string              `name:"data" placeholder:"DIR" help:"Directory for the state of the control plane. Without it the state is temporary."`
	Log    process.LogSettings `embed:""`
}

// Help shows an example.
func (natsServer) Help() string {
	return `Services on several machines need a NATS cluster with JetStream, and credentials; nothing here asks for any.

Examples:

    nereid bus
    nereid bus --listen 127.0.0.1:4333 --data state/`
}

// Run serves until ctx is done.
func (s *natsServer) Run(ctx context.Context) error {
	logs, err := s.Log.Open()
	if err != nil {
		return err
	}
	defer logs.Close()
	log := logs.Logger
	b, err := bus.Open(ctx, bus.Config{Listen: s.Listen, Dir: s.Data, Name: "nereid", Log: log})
	if err != nil {
		return err
	}
	log.Info("listening", zap.String("nats", b.Addr()))
	return errors.Join(lifecycle.Run(ctx, lifecycle.Part{Name: "log settings", Run: func(ctx context.Context) error { return control.FollowLog(ctx, b, logs) }}), b.Close())
}
