package gateway

import (
	"context"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/serve"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc"
)

// Restrictions are APIs that need a header: see [core.Restrictions].
type Restrictions = core.Restrictions

// TLS names the files of certificates: see [serve.TLS].
type TLS = serve.TLS

// GRPC configures the gRPC endpoint.
type GRPC struct {
	Listener
	// TLS is how the server proves who it is; nil is plain text.
	TLS *TLS
	// Restricted are the APIs that need a header, which gRPC carries behind
	// the prefix triton-grpc-protocol-; nil restricts none.
	Restricted Restrictions
	// Compress sends the answers of inferences as gzip to clients that take it.
	Compress bool
	Pings    Pings
	// MaxAge is how old a connection gets, give or take a tenth; what is under
	// way then has Grace to finish. 0 is for ever, for both.
	MaxAge, Grace time.Duration
}

// Pings are how the two ends of a connection find out that the other is gone.
type Pings struct {
	// Interval is how long a connection is silent before the server pings the
	// client, a second at the least, and Timeout how long that may take to
	// answer. Both are above 0.
	Interval, Timeout time.Duration
	// FromClients is the least time between the pings of a client; one that
	// exceeds it twice is disconnected. 0 lets clients ping at will.
	FromClients time.Duration
	// WithoutCalls lets clients ping while they have no call; else two hours
	// have to be between such pings.
	WithoutCalls bool
}

func defaultGRPC() GRPC {
	return GRPC{
		Listener: Listener{Enabled: true, Address: "0.0.0.0", Port: 8001},
		Pings:    Pings{Interval: 2 * time.Hour, Timeout: 20 * time.Second, FromClients: 5 * time.Minute},
	}
}

func (c *GRPC) validate() error {
	for _, d := range []struct {
		setting string
		value   time.Duration
		least   time.Duration
	}{
		{"--grpc-keepalive-time", c.Pings.Interval, 1},
		{"--grpc-keepalive-timeout", c.Pings.Timeout, 1},
		{"--grpc-http2-min-recv-ping-interval-without-data", c.Pings.FromClients, 0},
		{"--grpc-max-connection-age", c.MaxAge, 0},
		{"--grpc-max-connection-age-grace", c.Grace, 0},
	} {
		if d.value < d.least {
			return errs.New(errs.ConfigInvalid, "%s is %d: want milliseconds, %d or more", d.setting, d.value.Milliseconds(), d.least)
		}
	}
	return nil
}

// options are the front end's.
func (c *GRPC) options() rpc.Options {
	return rpc.Options{
		Keepalive: keepalive.ServerParameters{
			Time: c.Pings.Interval, Timeout: c.Pings.Timeout,
			MaxConnectionAge: c.MaxAge, MaxConnectionAgeGrace: c.Grace,
		},
		// gRPC for Go takes 0 for its own default.
		PingInterval: max(c.Pings.FromClients, 1), PingWithoutCalls: c.Pings.WithoutCalls,
		Compress: c.Compress, Restricted: c.Restricted,
	}
}

// unread is how long a client may take nothing of what is written to it, as
// over HTTP.
const unread = time.Minute

func (g *Gateway) serveGRPC(ctx context.Context, engine *core.Gateway) error {
	if g.grpc == nil {
		<-ctx.Done()
		return nil
	}
	options := g.config.GRPC.options()
	metered := g.meters.Engine(engine, "grpc")
	options.Clock, options.Budget, options.Cluster = g.deps.Clock, g.budget, g.deps.Cluster
	options.Answered, options.Failed = metered.Answered, metered.Failed
	options.Log = func(method string, err error) {
		g.deps.Log.Error("call failed", append(obs.Err(err), zap.String("method", method))...)
	}
	var extra []grpc.ServerOption
	if g.config.GRPC.TLS != nil {
		secured, err := g.config.GRPC.TLS.Config(func(err error) {
			g.deps.Log.Error("changed certificates cannot be used: the ones before stay", obs.Err(err)...)
		})
		if err != nil {
			return err
		}
		extra = append(extra, grpc.Creds(credentials.NewTLS(secured)))
	}
	return serve.GRPC(ctx, rpc.New(metered, options, extra...), serve.Patient(g.grpc, unread), flush)
}
