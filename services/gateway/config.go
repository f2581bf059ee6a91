package gateway

import (
	"net"
	"strconv"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Config configures a gateway.
type Config struct {
	// ID names this gateway among the others; it is its key in the bucket
	// gateways.
	ID string
	// ServerName and Version are what the server metadata shows.
	ServerName, Version string
	// HTTP and GRPC are where clients connect.
	HTTP, GRPC Listener
	// MaxInput bounds a JSON body, a tensor in it and a decompressed body, in
	// bytes.
	MaxInput int64
	// StrictReadiness makes the server ready only while every model is.
	// Without it the server is ready from the end of the start on.
	StrictReadiness bool
	// ExitTimeout is how long requests in flight may take when the gateway
	// stops; what is left then is cut off.
	ExitTimeout time.Duration
}

// Listener is an endpoint.
type Listener struct {
	Enabled bool
	// Address is an IP address or host name; empty is all interfaces.
	Address string
	// Port 0 takes any free one.
	Port int
}

func (l Listener) address() string { return net.JoinHostPort(l.Address, strconv.Itoa(l.Port)) }

// Default returns Triton's defaults.
func Default() Config {
	return Config{
		ID:              "gateway",
		ServerName:      "triton",
		HTTP:            Listener{Enabled: true, Address: "0.0.0.0", Port: 8000},
		GRPC:            Listener{Enabled: true, Address: "0.0.0.0", Port: 8001},
		MaxInput:        64 << 20,
		StrictReadiness: true,
		ExitTimeout:     30 * time.Second,
	}
}

// Validate returns an error of the reason config_invalid that names the
// setting and what it may be.
func (c Config) Validate() error {
	switch {
	case c.ID == "":
		return errs.New(errs.ConfigInvalid, "the gateway needs an id")
	case !c.HTTP.valid():
		return errs.New(errs.ConfigInvalid, "--http-port is %d: want 0 (any free port) to 65535", c.HTTP.Port)
	case !c.GRPC.valid():
		return errs.New(errs.ConfigInvalid, "--grpc-port is %d: want 0 (any free port) to 65535", c.GRPC.Port)
	case c.HTTP.Enabled && c.GRPC.Enabled && c.HTTP.Port == c.GRPC.Port && c.HTTP.Port != 0:
		return errs.New(errs.ConfigInvalid, "--http-port and --grpc-port are both %d: give each its own", c.HTTP.Port)
	case c.MaxInput <= 0:
		return errs.New(errs.ConfigInvalid, "--http-max-input-size is %d: want bytes above 0", c.MaxInput)
	case c.ExitTimeout < 0:
		return errs.New(errs.ConfigInvalid, "--exit-timeout-secs is %v: want 0 or more", c.ExitTimeout)
	}
	return nil
}

func (l Listener) valid() bool { return l.Port >= 0 && l.Port <= 65535 }
