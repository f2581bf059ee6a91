package gateway

import (
	"strings"
	"time"

	"github.com/nereid-serving/nereid/libs/config"
	"github.com/nereid-serving/nereid/libs/errs"
)

// Settings are a gateway's as an operator gives them: its flags, by the names
// that they have in the environment and in files too.
type Settings struct {
	ExitTimeout     int           `name:"exit-timeout-secs" default:"30" group:"Server" help:"How long requests in flight may take when the server stops, in seconds."`
	ExitNotice      int           `name:"exit-notice-secs" default:"0" group:"Server" help:"For how long a stopping server says that it is not ready, and serves on, before it refuses new requests, in seconds: so long as balancers take to notice."`
	StrictReadiness config.Switch `name:"strict-readiness" default:"true" group:"Server" help:"Be ready only while every model is; else from the end of the start on."`

	AllowHTTP    config.Switch `name:"allow-http" default:"true" group:"HTTP" help:"Serve HTTP."`
	HTTPAddress  string        `name:"http-address" default:"0.0.0.0" group:"HTTP" help:"Address to listen on, or unix:PATH."`
	HTTPPort     int           `name:"http-port" default:"8000" group:"HTTP" help:"Port to listen on; 0 is any free one."`
	HTTPMaxInput int64         `name:"http-max-input-size" default:"67108864" group:"HTTP" help:"Largest JSON body, tensor in it, or decompressed body, in bytes."`

	AllowGRPC   config.Switch `name:"allow-grpc" default:"true" group:"gRPC" help:"Serve gRPC."`
	GRPCAddress string        `name:"grpc-address" default:"0.0.0.0" group:"gRPC" help:"Address to listen on, or unix:PATH."`
	GRPCPort    int           `name:"grpc-port" default:"8001" group:"gRPC" help:"Port to listen on; 0 is any free one."`

	Connections ConnectionSettings `embed:""`

	MaxRequestBytes int64 `name:"max-request-bytes" default:"4294967296" group:"Queues" help:"Most bytes that requests hold, from their arrival to their answers; more are refused as memory_full. 0 is no bound."`
}

// Validate refuses what [Config] cannot express, with the reason
// config_invalid.
func (s *Settings) Validate() error {
	switch {
	case s.ExitTimeout < 0:
		return errs.New(errs.ConfigInvalid, "--exit-timeout-secs is %d: want 0 or more", s.ExitTimeout)
	case s.ExitNotice < 0:
		return errs.New(errs.ConfigInvalid, "--exit-notice-secs is %d: want 0 or more", s.ExitNotice)
	}
	return nil
}

// Configure puts the settings into the configuration. Errors have the reason
// config_invalid.
func (s *Settings) Configure(c *Config) error {
	http, grpc := &c.HTTP.Listener, &c.GRPC.Listener
	http.Enabled, http.Address, http.Port = s.AllowHTTP.On, s.HTTPAddress, s.HTTPPort
	grpc.Enabled, grpc.Address, grpc.Port = s.AllowGRPC.On, s.GRPCAddress, s.GRPCPort
	c.MaxInput, c.MaxRequestBytes = s.HTTPMaxInput, s.MaxRequestBytes
	c.StrictReadiness = s.StrictReadiness.On
	c.ExitTimeout, c.ExitNotice = time.Duration(s.ExitTimeout)*time.Second, time.Duration(s.ExitNotice)*time.Second
	return s.Connections.configure(c)
}

// AdminAddress is where metrics are served unless a setting says where: with
// HTTP, and of this machine alone if that is a socket.
func (s *Settings) AdminAddress() string {
	switch {
	case !s.AllowHTTP.On:
		return "0.0.0.0"
	case strings.HasPrefix(s.HTTPAddress, "unix:"):
		return "127.0.0.1"
	}
	return s.HTTPAddress
}
