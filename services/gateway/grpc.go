package gateway

import (
	"context"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/serve"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc"
)

// unread is how long a write to a client may make no progress, as over HTTP.
const unread = time.Minute

func (g *Gateway) serveGRPC(ctx context.Context, engine *core.Gateway) error {
	if g.grpc == nil {
		<-ctx.Done()
		return nil
	}
	meter, c := g.meters.Protocol("grpc"), &g.config.Connections
	restricted, err := restrictions("--grpc-restricted-protocol", c.GRPCRestrict)
	if err != nil {
		return err
	}
	options := rpc.Options{
		Options: path.Options{Restricted: restricted, Budget: g.budget, Meter: meter},
		Clock:   g.deps.Clock, Cluster: g.deps.Cluster,
		Compress: c.Compression != "none", Keepalive: c.keepalive(),
		// gRPC for Go replaces 0 by its own default.
		PingInterval: max(millis(c.PingInterval), 1), PingWithoutCalls: c.PingIdle.On,
		Failed: meter.Failed, MaxStreams: uint32(c.MaxStreams),
		Log: func(method string, err error) {
			g.deps.Log.Error("call failed", append(obs.Err(err), zap.String("method", method))...)
		},
	}
	tls, err := c.tls()
	if err != nil {
		return err
	}
	var extra []grpc.ServerOption
	if tls != nil {
		secured, err := tls.Config(func(err error) {
			g.deps.Log.Error("cannot use the changed certificates: the previous ones stay in use", obs.Err(err)...)
		})
		if err != nil {
			return err
		}
		extra = append(extra, grpc.Creds(credentials.NewTLS(secured)))
	}
	listener := g.bounded(g.grpc, c.MaxGRPC, "--grpc-max-connections")
	return serve.GRPC(ctx, rpc.New(engine, options, extra...), serve.WithWriteTimeout(listener, unread), flush)
}
