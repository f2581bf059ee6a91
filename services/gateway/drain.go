package gateway

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/rest"
)

// notice gives load balancers time to see that the gateway is no longer ready.
func (g *Gateway) notice(ctx context.Context, engine *core.Gateway) {
	if g.config.ExitNotice == 0 {
		return
	}
	engine.BeginShutdown()
	g.deps.Log.Info("gateway is not ready any more and still serves", zap.Duration("for", g.config.exitNotice()))
	lifecycle.Pause(ctx, g.config.exitNotice())
}

// lastRequests is how long a draining gateway waits for another request on HTTP connections that were used
// within that time. The response to that request closes the connection, so a client that sends one request
// after another sees no error. Idle connections do not delay the drain.
const lastRequests = 2 * time.Second

// drain waits for the requests in flight, at most for the exit timeout. Its log lines are Triton's.
func (g *Gateway) drain(ctx context.Context, engine *core.Gateway) {
	ctx, cancel := context.WithTimeout(ctx, g.config.exitTimeout())
	defer cancel()
	until, _ := ctx.Deadline()
	g.deps.Log.Info("Waiting for in-flight requests to complete.", zap.Int64("in_flight", engine.InFlight()), zap.Time("until", until))
	logged := make(chan struct{})
	defer func() { <-logged }()
	drained, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		defer close(logged)
		for left := g.config.ExitTimeout; ; left-- {
			g.deps.Log.Info(fmt.Sprintf("Timeout %d: Found %d model versions that have in-flight inferences", left, engine.Versions()))
			if lifecycle.Pause(drained, time.Second); drained.Err() != nil {
				return
			}
		}
	}()
	g.recordings.Stop()
	engine.BeginDrain()
	for last := time.Now().Add(lastRequests); g.connections.Load().InUse(lastRequests) && time.Now().Before(last) && ctx.Err() == nil; {
		lifecycle.Pause(ctx, 10*time.Millisecond)
	}
	if err := engine.Drain(ctx); err != nil {
		g.deps.Log.Warn("exit timeout: canceling the requests in flight", zap.Int64("in_flight", engine.InFlight()))
	}
}

// followConnections marks each HTTP call with whether its connection was open before the drain started. During
// the drain it closes each connection after its response.
func (g *Gateway) followConnections(server *http.Server, engine *core.Gateway) {
	server.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		return rest.WithConnected(ctx, !engine.ShuttingDown())
	}
	next := server.Handler
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if engine.ShuttingDown() {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}
