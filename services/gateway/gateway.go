// Package gateway is the service that clients speak to: HTTP and gRPC in,
// answers out. It checks requests against the models of its snapshot, hands
// them to the scheduler, and gives each its one answer.
//
// What it knows of models comes from the state buckets alone, and it writes
// only its own lease there.
package gateway

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/serve"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/metered"
	"github.com/nereid-serving/nereid/services/gateway/internal/pending"
	"github.com/nereid-serving/nereid/services/gateway/internal/rest"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc"
)

// Dispatcher takes requests towards their scheduler: see [core.Dispatcher].
type Dispatcher = core.Dispatcher

// StatisticsSource counts what became of requests: see [core.StatisticsSource].
type StatisticsSource = core.StatisticsSource

// Repository loads and unloads models on request: see [core.Repository].
type Repository = core.Repository

// Cluster tells of the whole cluster: see [rpc.Cluster].
type Cluster = rpc.Cluster

// IndexEntry is one line of the repository index.
type IndexEntry = core.IndexEntry

// Unloaded is the reason of an index entry that was taken out of service.
const Unloaded = core.CauseUnloaded

// Deps are what a gateway works with.
type Deps struct {
	Bus        *bus.Bus
	Dispatcher Dispatcher
	// Reachable reports whether a pool's requests get to a scheduler. It may be
	// nil; then they always do.
	Reachable func(pool string) bool
	// Connected returns a channel that is closed when the present stream to a
	// worker's incarnation ends; nil if there is none. It may be nil; then a
	// worker is gone with its lease.
	Connected func(worker uint64) <-chan struct{}
	// Registered is told the gateway's incarnation before its first request. It
	// may be nil.
	Registered func(incarnation uint64)
	// Statistics gives the source for a pool.
	Statistics func(pool string) StatisticsSource
	// Repository may be nil; then the gateway loads and unloads no models.
	Repository Repository
	// Cluster may be nil; then the gateway tells nothing of the cluster.
	Cluster Cluster
	// Clock is that of the requests' times.
	Clock *mono.System
	// Pool is where the memory of tensors comes from.
	Pool    *tensor.Pool
	Metrics prometheus.Registerer
	Log     *zap.Logger
}

// Gateway is one gateway. It is a Responder for its requests and safe for
// concurrent use.
type Gateway struct {
	config Config
	deps   Deps
	meters *metered.Metrics
	budget *core.Budget

	// table and engine are set when the lease has given the gateway its
	// incarnation.
	table   atomic.Pointer[pending.Table]
	engine  atomic.Pointer[core.Gateway]
	started chan struct{} // closed at the end of the start
	bound   chan struct{} // closed when the listeners are open
	http    net.Listener  // valid after bound, nil if not enabled
	grpc    net.Listener
}

// New makes a gateway that does nothing before Run.
func New(c Config, deps Deps) (*Gateway, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	g := &Gateway{config: c, deps: deps, budget: core.NewBudget(c.MaxRequestBytes), started: make(chan struct{}), bound: make(chan struct{})}
	g.meters = metered.New(deps.Metrics, deps.Clock)
	deps.Metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "nereid_gateway_in_flight_requests", Help: "Requests without their final answer.",
	}, func() float64 { return float64(g.InFlight()) }), prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "nereid_gateway_request_bytes", Help: "Bytes that requests hold, from their arrival to their answers.",
	}, func() float64 { return float64(g.budget.Held()) }))
	return g, nil
}

// Respond hands a response to the request's client; see [infer.Responder].
func (g *Gateway) Respond(r *infer.Response) {
	if t := g.table.Load(); t != nil {
		t.Respond(r)
		return
	}
	r.Release()
}

// Ready reports whether the gateway is ready, as its readiness endpoint does.
func (g *Gateway) Ready() bool {
	engine := g.engine.Load()
	return engine != nil && engine.Ready()
}

// Unreachable are the pools with models of which no scheduler can be reached.
func (g *Gateway) Unreachable() []string {
	if engine := g.engine.Load(); engine != nil {
		return engine.Unreachable()
	}
	return nil
}

// Started is closed at the end of the start: the registry's scan is known and
// every model in it is ready or has failed.
func (g *Gateway) Started() <-chan struct{} { return g.started }

// Bound is closed when the listeners are open; Addresses is valid then.
func (g *Gateway) Bound() <-chan struct{} { return g.bound }

// Addresses are those of the open listeners, empty where not enabled.
func (g *Gateway) Addresses() (http, grpc string) { return addressOf(g.http), addressOf(g.grpc) }

// Index lists the models with their states.
func (g *Gateway) Index() []IndexEntry {
	if engine := g.engine.Load(); engine != nil {
		return engine.Index(false)
	}
	return nil
}

// Run serves until ctx is done. Then it says for the exit notice that it is not
// ready, refuses new requests, finishes those in flight within the exit timeout,
// and returns nil.
func (g *Gateway) Run(ctx context.Context) error {
	r, err := g.register(ctx)
	if err != nil {
		return err
	}
	if g.deps.Registered != nil {
		g.deps.Registered(r.Epoch())
	}
	engine := g.start(r.Epoch())
	if err := g.listen(ctx); err != nil {
		return err
	}
	close(g.bound)
	// Everything but the wait for ctx goes on until the drain is over.
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	group, serving := errgroup.WithContext(serving)
	group.Go(func() error { return g.keep(serving, r) })
	group.Go(func() error { return g.watch(serving, engine, r) })
	group.Go(func() error { return g.serveHTTP(serving, engine) })
	group.Go(func() error { return g.serveGRPC(serving, engine) })
	group.Go(func() error {
		defer stop()
		select {
		case <-ctx.Done():
			g.notice(serving, engine)
			g.drain(serving, engine)
		case <-serving.Done(): // a part has failed
		}
		return nil
	})
	return group.Wait()
}

// keep keeps the gateway's own key until ctx is done. That it cannot be given
// back then, since NATS is away, does not make the stop a failure.
func (g *Gateway) keep(ctx context.Context, r *registration) error {
	err := r.Run(ctx)
	if ctx.Err() != nil && err != nil {
		g.deps.Log.Warn("lease not released: it ends by itself", obs.Err(err)...)
		return nil
	}
	return err
}

func (g *Gateway) start(incarnation uint64) *core.Gateway {
	table := pending.New(incarnation)
	engine := core.New(
		core.ServerInfo{Name: g.config.ServerName, Version: g.config.Version, Extensions: extensions()},
		core.Deps{
			Dispatcher: g.deps.Dispatcher, Reachable: g.deps.Reachable, Statistics: g.deps.Statistics, Repository: g.deps.Repository,
			Pending: table, Clock: g.deps.Clock, Pool: g.deps.Pool,
			StrictReadiness: g.config.StrictReadiness,
		})
	g.table.Store(table)
	g.engine.Store(engine)
	return engine
}

// extensions of the protocol, in Triton's order.
func extensions() []string {
	return []string{"classification", "model_repository", "model_repository(unload_dependents)", "model_configuration", "binary_tensor_data", "parameters", "statistics"}
}

// InFlight returns how many requests wait for their answer. It is safe for
// concurrent use.
func (g *Gateway) InFlight() int64 {
	if t := g.table.Load(); t != nil {
		return t.InFlight()
	}
	return 0
}

// notice gives those who ask for readiness the time to send requests elsewhere.
func (g *Gateway) notice(ctx context.Context, engine *core.Gateway) {
	if g.config.ExitNotice == 0 {
		return
	}
	engine.Leave()
	g.deps.Log.Info("gateway says that it is not ready, and serves on", zap.Duration("for", g.config.ExitNotice))
	lifecycle.Pause(ctx, g.config.ExitNotice)
}

// drain gives the requests in flight the exit timeout to finish.
func (g *Gateway) drain(ctx context.Context, engine *core.Gateway) {
	g.deps.Log.Info("gateway drains", zap.Int64("in_flight", engine.InFlight()))
	ctx, cancel := context.WithTimeout(ctx, g.config.ExitTimeout)
	defer cancel()
	if err := engine.Drain(ctx); err != nil {
		g.deps.Log.Warn("requests are cut off at the exit timeout", zap.Int64("in_flight", engine.InFlight()))
	}
}

func (g *Gateway) listen(ctx context.Context) (err error) {
	if g.config.HTTP.Enabled {
		if g.http, err = serve.Listen(ctx, g.config.HTTP.Endpoint("HTTP", "--http-port")); err != nil {
			return err
		}
	}
	if g.config.GRPC.Enabled {
		g.grpc, err = serve.Listen(ctx, g.config.GRPC.Endpoint("gRPC", "--grpc-port"))
	}
	return err
}

// flush is how long answers that are there may take to reach their clients
// when the servers stop.
const flush = 5 * time.Second

func (g *Gateway) serveHTTP(ctx context.Context, engine *core.Gateway) error {
	if g.http == nil {
		<-ctx.Done()
		return nil
	}
	metered := g.meters.Engine(engine, "http")
	handler := rest.New(metered, rest.Options{
		Answered: metered.Answered, Failed: metered.Failed,
		MaxInput: g.config.MaxInput, Restricted: g.config.HTTP.Restricted, Budget: g.budget,
		Log: func(err error) { g.deps.Log.Error("request failed", obs.Err(err)...) },
	})
	// No limit on the time of a request: models may take long, and clients
	// state their own deadlines.
	server := &http.Server{Handler: departing(handler, engine), ReadHeaderTimeout: time.Minute, IdleTimeout: 5 * time.Minute}
	return serve.HTTP(ctx, server, g.http, flush)
}

// departing ends connections with an answer once the gateway leaves: a client
// that keeps one would else have its next request meet the end of it.
func departing(h http.Handler, engine *core.Gateway) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if engine.Leaving() {
			w.Header().Set("Connection", "close")
		}
		h.ServeHTTP(w, r)
	})
}

func addressOf(l net.Listener) string {
	if l == nil {
		return ""
	}
	return l.Addr().String()
}
