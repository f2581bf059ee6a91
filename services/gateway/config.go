package gateway

import (
	"strings"
	"time"

	"github.com/nereid-serving/nereid/libs/config"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/serve"
)

// Config configures a gateway. Each field with a name is a flag, and a setting of that name in configuration
// files and the environment.
type Config struct {
	// ID identifies this gateway among all gateways; it is its key in the bucket gateways.
	ID string `kong:"-"`
	// ServerName and Version are shown in the server metadata.
	ServerName string `kong:"-"`
	Version    string `kong:"-"`

	// ExitTimeout bounds the drain; requests still in flight after it are canceled.
	ExitTimeout int `name:"exit-timeout-secs" default:"30" group:"Server" help:"How long requests in flight may take when the server stops, in seconds."`
	// ExitNotice is how long a stopping gateway reports not ready while it still serves.
	ExitNotice int `name:"exit-notice-secs" default:"0" group:"Server" help:"How long a stopping server reports not ready and keeps serving before it refuses new requests, in seconds: as long as load balancers need to notice."`
	// StrictReadiness makes the server ready only while every model is ready. Without it the server is ready
	// once the start is over.
	StrictReadiness config.Switch `name:"strict-readiness" default:"true" group:"Server" help:"Be ready only while every model is; otherwise as soon as the start has ended."`

	// StallTimeout is how long a client may make no progress in sending a request or reading a response.
	StallTimeout int `name:"stall-timeout-secs" default:"60" group:"Server" help:"Time in which a client must send 64 KiB of a request, or read as much of a response, or the rest, in seconds; otherwise the server ends the call."`

	AllowHTTP   config.Switch `name:"allow-http" default:"true" group:"HTTP" help:"Serve HTTP."`
	HTTPAddress string        `name:"http-address" default:"0.0.0.0" group:"HTTP" help:"Address to listen on, or unix:PATH."`
	HTTPPort    int           `name:"http-port" default:"8000" group:"HTTP" help:"Port to listen on; 0 is any free one."`
	// MaxInput bounds a JSON body, a tensor in it and a decompressed body.
	MaxInput int64 `name:"http-max-input-size" default:"67108864" group:"HTTP" help:"Largest JSON body, tensor in it, or decompressed body, in bytes."`
	// HealthBody selects the body of health responses: none or json.
	HealthBody string `name:"health-body" default:"none" enum:"none,json" group:"HTTP" help:"Body of responses of /v2/health and of a model's readiness: none, as Triton's, except for clients whose Accept header names application/json; or json, the Open Inference Protocol's body for all clients, which KServe's SDK needs."`

	AllowGRPC   config.Switch `name:"allow-grpc" default:"true" group:"gRPC" help:"Serve gRPC."`
	GRPCAddress string        `name:"grpc-address" default:"0.0.0.0" group:"gRPC" help:"Address to listen on, or unix:PATH."`
	GRPCPort    int           `name:"grpc-port" default:"8001" group:"gRPC" help:"Port to listen on; 0 is any free one."`

	// Policy is the path of the policy file, or empty for none.
	Policy string `name:"policy" placeholder:"FILE" group:"Tenants" help:"Policy of the server: tenants with their keys, limits, priority bands, cost classes and routes. A changed file is reloaded; one with errors changes nothing. See nereid policy."`

	// RequirePolicy says whether the gateway refuses calls while it has no policy: true, false or auto. auto
	// means true as soon as the registry has published a policy.
	RequirePolicy string `name:"require-policy" default:"auto" enum:"auto,true,false" group:"Tenants" help:"Refuse calls without a policy: auto does so once the registry has published one, and accepts no calls until it knows; true always; false never."`
	// AllowRecording lets clients record requests.
	AllowRecording config.Switch `name:"allow-recording" default:"false" group:"Tenants" help:"Let clients record incoming requests, as nereid record does. Under a policy only tenants with the API recording may."`
	// ExplainedRequests is the number of recent requests that can be explained.
	ExplainedRequests int `name:"explained-requests" default:"10000" group:"Tenants" help:"How many recent requests the server remembers to explain them. See nereid explain."`

	Connections  Connections  `embed:""`
	Cache        Cache        `embed:""`
	SharedMemory SharedMemory `embed:""`

	// MaxRequestBytes bounds the memory of all requests together.
	MaxRequestBytes int64 `name:"max-request-bytes" default:"4294967296" group:"Queues" help:"The most memory of all requests together, from their arrival to their responses; more are refused with memory_full. 0 is no limit."`
}

// Default returns the flags' defaults, which are Triton's.
func Default() Config {
	return Config{
		ID: "gateway", ServerName: "triton",
		ExitTimeout: 30, StrictReadiness: config.Switch{On: true}, StallTimeout: 60,
		AllowHTTP: config.Switch{On: true}, HTTPAddress: "0.0.0.0", HTTPPort: 8000, MaxInput: 64 << 20, HealthBody: "none",
		AllowGRPC: config.Switch{On: true}, GRPCAddress: "0.0.0.0", GRPCPort: 8001,
		Connections:     defaultConnections(),
		SharedMemory:    defaultSharedMemory(),
		MaxRequestBytes: 4 << 30, ExplainedRequests: 10000, RequirePolicy: "auto",
	}
}

// Validate returns an error with the reason config_invalid that names the setting and its valid values. It does
// not check ID, which is not a setting: [New] does.
func (c Config) Validate() error {
	http, grpc := c.http(), c.grpc()
	switch {
	case !http.Valid():
		return errs.New(errs.ConfigInvalid, "--http-port is %d: want 0 (any free port) to 65535", c.HTTPPort)
	case !grpc.Valid():
		return errs.New(errs.ConfigInvalid, "--grpc-port is %d: want 0 (any free port) to 65535", c.GRPCPort)
	case http.Collides(grpc):
		return errs.New(errs.ConfigInvalid, "--http-port and --grpc-port are both %d: give each its own", c.HTTPPort)
	case c.MaxInput <= 0:
		return errs.New(errs.ConfigInvalid, "--http-max-input-size is %d: want bytes above 0", c.MaxInput)
	case c.MaxRequestBytes < 0 || c.MaxRequestBytes > 0 && c.MaxRequestBytes < c.MaxInput:
		return errs.New(errs.ConfigInvalid, "--max-request-bytes is %d: want 0 (no bound) or at least --http-max-input-size, %d", c.MaxRequestBytes, c.MaxInput)
	case c.ExitTimeout < 0:
		return errs.New(errs.ConfigInvalid, "--exit-timeout-secs is %d: want 0 or more", c.ExitTimeout)
	case c.ExitNotice < 0:
		return errs.New(errs.ConfigInvalid, "--exit-notice-secs is %d: want 0 or more", c.ExitNotice)
	case c.ExplainedRequests < 0:
		return errs.New(errs.ConfigInvalid, "--explained-requests is %d: want 0 or more", c.ExplainedRequests)
	case c.StallTimeout < 1:
		return errs.New(errs.ConfigInvalid, "--stall-timeout-secs is %d: want 1 or more", c.StallTimeout)
	}
	if _, _, err := c.Cache.read(); err != nil {
		return err
	}
	if err := c.SharedMemory.validate(); err != nil {
		return err
	}
	return c.Connections.validate()
}

// FreeTensorBytes returns how many bytes of free tensor memory a gateway's process retains for later requests:
// most, or a quarter of MaxRequestBytes if that is less.
func (c *Config) FreeTensorBytes(most int64) int64 {
	if c.MaxRequestBytes == 0 {
		return most
	}
	return min(most, c.MaxRequestBytes/4)
}

// AdminAddress is the default address for metrics: the HTTP address, or loopback if HTTP listens on a Unix
// socket.
func (c *Config) AdminAddress() string {
	switch {
	case !c.AllowHTTP.On:
		return "0.0.0.0"
	case strings.HasPrefix(c.HTTPAddress, "unix:"):
		return "127.0.0.1"
	}
	return c.HTTPAddress
}

func (c *Config) http() serve.Listener {
	return serve.Listener{Enabled: c.AllowHTTP.On, Address: c.HTTPAddress, Port: c.HTTPPort, Reuse: c.Connections.ReuseHTTP.On}
}

func (c *Config) grpc() serve.Listener {
	return serve.Listener{Enabled: c.AllowGRPC.On, Address: c.GRPCAddress, Port: c.GRPCPort, Reuse: c.Connections.ReuseGRPC.On}
}

func (c *Config) exitTimeout() time.Duration { return time.Duration(c.ExitTimeout) * time.Second }

func (c *Config) stallTimeout() time.Duration { return time.Duration(c.StallTimeout) * time.Second }

func (c *Config) exitNotice() time.Duration { return time.Duration(c.ExitNotice) * time.Second }
