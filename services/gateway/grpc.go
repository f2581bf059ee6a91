package gateway

import (
	"context"

	"google.golang.org/grpc/credentials"

	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/serve"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc"
)

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
		// gRPC for Go replaces 0 by its own default.
		PingInterval: max(millis(c.PingInterval), 1), PingWithoutCalls: c.PingIdle.On,
		MaxStreams: uint32(c.MaxStreams), StallTimeout: g.config.stallTimeout(),
	}
	tls, err := c.tls()
	if err != nil {
		return err
	}
	if tls != nil {
		secured, err := tls.Config(func(err error) {
			g.deps.Log.Error("cannot use the changed certificates: the previous ones stay in use", obs.Err(err)...)
		})
		if err != nil {
			return err
		}
		options.Credentials = credentials.NewTLS(secured)
	}
	listener := g.bounded(g.grpc, c.MaxGRPC, "--grpc-max-connections")
	return serve.GRPC(ctx, rpc.New(engine, options), serve.WithWriteTimeout(listener, options.StallTimeout), flush)
}
