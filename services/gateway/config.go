package gateway

import (
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/serve"
)

// Config configures a gateway.
type Config struct {
	// ID names this gateway among the others; it is its key in the bucket
	// gateways.
	ID string
	// ServerName and Version are what the server metadata shows.
	ServerName, Version string
	// HTTP and GRPC are where clients connect.
	HTTP HTTP
	GRPC GRPC
	// MaxInput bounds a JSON body, a tensor in it and a decompressed body, in
	// bytes.
	MaxInput int64
	// MaxRequestBytes bounds what the requests of all clients hold together,
	// in bytes; 0 is no bound.
	MaxRequestBytes int64
	// StrictReadiness makes the server ready only while every model is.
	// Without it the server is ready from the end of the start on.
	StrictReadiness bool
	// ExitTimeout is how long requests in flight may take when the gateway
	// stops; what is left then is cut off.
	ExitTimeout time.Duration
	// ExitNotice is for how long a gateway that stops says that it is not ready
	// and serves on, before it refuses new requests.
	ExitNotice time.Duration
}

// Listener is an endpoint for clients: see [serve.Listener].
type Listener = serve.Listener

// HTTP configures the HTTP endpoint.
type HTTP struct {
	Listener
	// Restricted are the APIs that need a header; nil restricts none.
	Restricted Restrictions
}

// Default returns Triton's defaults.
func Default() Config {
	return Config{
		ID:              "gateway",
		ServerName:      "triton",
		HTTP:            HTTP{Listener: Listener{Enabled: true, Address: "0.0.0.0", Port: 8000}},
		GRPC:            defaultGRPC(),
		MaxInput:        64 << 20,
		MaxRequestBytes: 4 << 30,
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
	case !c.HTTP.Valid():
		return errs.New(errs.ConfigInvalid, "--http-port is %d: want 0 (any free port) to 65535", c.HTTP.Port)
	case !c.GRPC.Valid():
		return errs.New(errs.ConfigInvalid, "--grpc-port is %d: want 0 (any free port) to 65535", c.GRPC.Port)
	case c.HTTP.Collides(c.GRPC.Listener):
		return errs.New(errs.ConfigInvalid, "--http-port and --grpc-port are both %d: give each its own", c.HTTP.Port)
	case c.MaxInput <= 0:
		return errs.New(errs.ConfigInvalid, "--http-max-input-size is %d: want bytes above 0", c.MaxInput)
	case c.MaxRequestBytes < 0 || c.MaxRequestBytes > 0 && c.MaxRequestBytes < c.MaxInput:
		return errs.New(errs.ConfigInvalid, "--max-request-bytes is %d: want 0 (no bound) or at least --http-max-input-size, %d", c.MaxRequestBytes, c.MaxInput)
	case c.ExitTimeout < 0:
		return errs.New(errs.ConfigInvalid, "--exit-timeout-secs is %v: want 0 or more", c.ExitTimeout)
	case c.ExitNotice < 0:
		return errs.New(errs.ConfigInvalid, "--exit-notice-secs is %v: want 0 or more", c.ExitNotice)
	}
	return c.GRPC.validate()
}
