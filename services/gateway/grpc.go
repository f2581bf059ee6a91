package gateway

import (
	"context"
	"net"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/credentials"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/serve"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc"
)

// closed returns a function that logs connections closed because of their client's behavior, at most once a
// second.
func (g *Gateway) closed() func(net.Addr, *errs.Error) {
	sometimes := rate.Sometimes{Interval: time.Second}
	return func(peer net.Addr, cause *errs.Error) {
		sometimes.Do(func() {
			g.deps.Log.Warn("connection closed for what its client does", append(obs.Err(cause), zap.Stringer("peer", peer))...)
		})
	}
}

func (g *Gateway) serveGRPC(ctx context.Context, engine *core.Gateway) error {
	if g.grpc == nil {
		<-ctx.Done()
		return nil
	}
	c := &g.config.Connections
	restricted, err := restrictions("--grpc-restricted-protocol", c.GRPCRestrict)
	if err != nil {
		return err
	}
	options := rpc.Options{
		Options: g.path("grpc", restricted),
		Clock:   g.deps.Clock, Cluster: g.deps.Cluster,
		Compress: c.Compression != "none", Keepalive: c.keepalive(),
		Pings:      rpc.Pings{Interval: millis(c.PingInterval), WithoutCalls: c.PingIdle.On, Strikes: c.PingStrikes},
		MaxStreams: uint32(c.MaxStreams), StallTimeout: g.config.stallTimeout(),
		Closed: g.closed(), Turns: g.turns,
	}
	if options.Forward, err = path.ForwardPattern("--grpc-header-forward-pattern", c.GRPCHeaders); err != nil {
		return err
	}
	tls, err := c.tls()
	if err != nil {
		return err
	}
	if tls != nil {
		secured, err := tls.Config(serve.LogReload(g.deps.Log))
		if err != nil {
			return err
		}
		options.Credentials = credentials.NewTLS(secured)
	}
	listener := g.bounded(g.grpc, c.MaxGRPC, grpcConnectionBytes, "--grpc-max-connections")
	return serve.GRPC(ctx, rpc.New(engine, options), serve.WithWriteTimeout(listener, options.StallTimeout), flush)
}
