// Package gateway is the service that clients call over HTTP and gRPC. It checks
// requests against its snapshot of the models, submits them to the scheduler,
// and returns exactly one response to each.
//
// It reads models from the state buckets alone, and writes its own lease only.
package gateway

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/serve"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/cache"
	"github.com/nereid-serving/nereid/services/gateway/internal/calls"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/explain"
	"github.com/nereid-serving/nereid/services/gateway/internal/metered"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/redis"
	"github.com/nereid-serving/nereid/services/gateway/internal/rest"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc"
)

// Dispatcher submits requests to their scheduler: see [core.Dispatcher].
type Dispatcher = core.Dispatcher

// StatisticsSource has the statistics of a pool: see [core.StatisticsSource].
type StatisticsSource = core.StatisticsSource

// Repository loads and unloads models on request: see [core.Repository].
type Repository = core.Repository

// Cluster returns the state of the whole cluster: see [rpc.Cluster].
type Cluster = rpc.Cluster

// IndexEntry is one line of the repository index.
type IndexEntry = core.IndexEntry

// Unloaded is the reason of an index entry that was unloaded on request.
const Unloaded = core.CauseUnloaded

// Deps are what a gateway works with.
type Deps struct {
	Bus        *bus.Bus
	Dispatcher Dispatcher
	// Requests is the table that the gateway shares with its [Remote]. It may be
	// nil; then the gateway makes one.
	Requests *Requests
	// Reachable reports whether a pool's scheduler is reachable. It may be nil;
	// then it always is.
	Reachable func(pool string) bool
	// Connected returns a channel that is closed when the current stream to a
	// worker's incarnation ends; nil if there is none. It may be nil; then a
	// worker is lost with its lease.
	Connected func(worker uint64) <-chan struct{}
	// Registered is called with the gateway's incarnation before its first
	// request. It may be nil.
	Registered func(incarnation uint64)
	// Statistics returns the source for a pool.
	Statistics func(pool string) StatisticsSource
	// CacheUsed is told what the response cache did for each request of a pool, for
	// the pool's statistics. It does not block, and may be nil.
	CacheUsed func(pool string, u infer.CacheUse)
	// EnsembleEnded is told of the end of each request for an ensemble of a pool, for
	// the pool's statistics. It does not block, and may be nil.
	EnsembleEnded func(pool string, e infer.EnsembleEnd)
	// Repository may be nil; then the gateway loads and unloads no models.
	Repository Repository
	// Cluster may be nil; then the gateway has no such call.
	Cluster Cluster
	// SharedQuotas says that other gateways serve the same tenants, with which their limits
	// are shared.
	SharedQuotas bool
	// Clock is that of the requests' times.
	Clock *mono.System
	// Pool is the memory pool of tensors.
	Pool    *tensor.Pool
	Metrics prometheus.Registerer
	Log     *zap.Logger
}

// Gateway is one gateway. It is a Responder for its requests, a Caller for the models
// of its process, and safe for concurrent use.
type Gateway struct {
	config Config
	deps   Deps
	meters *metered.Metrics
	budget *core.Budget
	cache  *cache.Cache  // nil without one
	redis  *redis.Values // of the cache; nil without one
	policy *policies
	recent *explain.Requests

	// engine and calls are set once the lease has assigned the incarnation.
	engine  atomic.Pointer[core.Gateway]
	calls   atomic.Pointer[calls.Caller]
	started chan struct{} // closed at the end of the start
	bound   chan struct{} // closed when the listeners are open
	http    net.Listener  // valid after bound, nil if not enabled
	grpc    net.Listener
}

// New returns a gateway; Run starts it.
func New(c Config, deps Deps) (*Gateway, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.ID == "" {
		return nil, errs.New(errs.ConfigInvalid, "the gateway needs an id")
	}
	if deps.Requests == nil {
		deps.Requests = NewRequests()
	}
	g := &Gateway{config: c, deps: deps, budget: core.NewBudget(c.MaxRequestBytes), started: make(chan struct{}), bound: make(chan struct{})}
	g.meters = metered.New(deps.Metrics)
	g.recent = explain.New(c.ExplainedRequests, deps.Clock.Wall)
	g.policy = newPolicies(c.Policy, c.RequirePolicy.On, g.meters, deps.Metrics, deps.Log)
	var err error
	if g.cache, g.redis, err = openCache(&c.Cache, deps); err != nil {
		return nil, err
	}
	deps.Metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "nereid_gateway_in_flight_requests", Help: "Requests without their final response.",
	}, func() float64 { return float64(g.InFlight()) }), prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "nereid_gateway_request_bytes", Help: "Bytes that requests hold, from their arrival to their responses.",
	}, func() float64 { return float64(g.budget.Reserved()) }))
	return g, nil
}

// explain tells what became of a request, of whichever gateway.
func (g *Gateway) explain(ctx context.Context, q infer.ExplainQuestion) (*infer.Explanation, error) {
	return g.recent.Explain(ctx, g.deps.Bus, q)
}

// Respond delivers a response to the request's client; see [infer.Responder].
func (g *Gateway) Respond(r *infer.Response) { g.deps.Requests.Respond(r) }

// Ready reports whether the gateway is ready, as its readiness endpoint does.
func (g *Gateway) Ready() bool {
	engine := g.engine.Load()
	return engine != nil && engine.Ready()
}

// Unreachable lists the pools with ready models and without a reachable scheduler.
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

// Run serves until ctx is done. Then it is not ready for the exit notice, refuses
// new requests, drains those in flight within the exit timeout, and returns nil.
func (g *Gateway) Run(ctx context.Context) error {
	r, err := g.register(ctx)
	if err != nil {
		return lifecycle.UnlessStopped(ctx, err)
	}
	if g.deps.Registered != nil {
		g.deps.Registered(r.Epoch())
	}
	engine := g.start(r.Epoch())
	// All parts run until the drain is over.
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, serving := errgroup.WithContext(serving)
	if err := g.open(ctx, serving, group); err != nil {
		stop()
		return errors.Join(err, group.Wait())
	}
	g.calls.Store(calls.New(serving, engine, g.path("call", nil)))
	group.Go(func() error { return g.renew(serving, r) })
	group.Go(func() error { return g.watch(serving, engine, r) })
	if g.redis != nil {
		group.Go(func() error { return g.redis.Run(serving) })
	}
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

// open opens the listeners once it is known which policy there is: calls that come before
// would be subject to none.
func (g *Gateway) open(ctx, serving context.Context, group *errgroup.Group) error {
	if g.deps.SharedQuotas {
		short := g.policy.tenants.Share()
		group.Go(func() error { return g.shareQuotas(serving, short) })
	}
	if err := g.policy.start(serving); err != nil {
		return err
	}
	group.Go(func() error { return g.policy.follow(serving, g.deps.Bus) })
	group.Go(func() error { return g.policy.recall(serving, g.deps.Bus) })
	group.Go(func() error { return g.deps.Bus.Answer(serving, bus.AskGateways, g.recent.Answer) })
	g.policy.await(ctx, serving)
	if err := g.listen(ctx); err != nil {
		return err
	}
	close(g.bound)
	return nil
}

// renew renews the gateway's lease until ctx is done. A lease that cannot be
// released then, since NATS is away, is no failure of the stop.
func (g *Gateway) renew(ctx context.Context, r *registration) error {
	err := r.Run(ctx)
	if ctx.Err() != nil && err != nil {
		g.deps.Log.Warn("lease not released: it ends by itself", obs.Err(err)...)
		return nil
	}
	return err
}

func (g *Gateway) start(incarnation uint64) *core.Gateway {
	g.deps.Requests.SetOrigin(incarnation)
	engine := core.New(
		core.ServerInfo{Name: g.config.ServerName, Version: g.config.Version, Extensions: extensions()},
		core.Deps{
			Dispatcher: g.deps.Dispatcher, Reachable: g.deps.Reachable, Statistics: g.deps.Statistics, Repository: g.deps.Repository,
			Requests: g.deps.Requests, Clock: g.deps.Clock, Pool: g.deps.Pool, StatisticsMissing: g.statisticsMissing, EnsembleEnded: g.deps.EnsembleEnded, Cache: g.cache,
			StrictReadiness: g.config.StrictReadiness.On,
		})
	g.engine.Store(engine)
	return engine
}

func (g *Gateway) statisticsMissing(pool string, err error) {
	g.meters.StatisticsMissing()
	g.deps.Log.Warn("a pool's scheduler does not answer: its models are missing in the statistics", append(obs.Err(err), zap.String("pool", pool))...)
}

// extensions of the protocol, in Triton's order.
func extensions() []string {
	return []string{"classification", "model_repository", "model_repository(unload_dependents)", "schedule_policy", "model_configuration", "binary_tensor_data", "parameters", "statistics"}
}

// InFlight returns the number of requests without their final response. It is
// safe for concurrent use.
func (g *Gateway) InFlight() int64 { return g.deps.Requests.InFlight() }

// notice gives load balancers the time to notice the end of readiness.
func (g *Gateway) notice(ctx context.Context, engine *core.Gateway) {
	if g.config.ExitNotice == 0 {
		return
	}
	engine.BeginShutdown()
	g.deps.Log.Info("gateway is not ready any more and still serves", zap.Duration("for", g.config.exitNotice()))
	lifecycle.Pause(ctx, g.config.exitNotice())
}

// drain waits at most the exit timeout for the requests in flight.
func (g *Gateway) drain(ctx context.Context, engine *core.Gateway) {
	g.deps.Log.Info("gateway drains", zap.Int64("in_flight", engine.InFlight()))
	ctx, cancel := context.WithTimeout(ctx, g.config.exitTimeout())
	defer cancel()
	if err := engine.Drain(ctx); err != nil {
		g.deps.Log.Warn("exit timeout: canceling the requests in flight", zap.Int64("in_flight", engine.InFlight()))
	}
}

func (g *Gateway) listen(ctx context.Context) (err error) {
	if l := g.config.http(); l.Enabled {
		if g.http, err = serve.Listen(ctx, l.Endpoint("HTTP", "--http-port")); err != nil {
			return err
		}
	}
	if l := g.config.grpc(); l.Enabled {
		g.grpc, err = serve.Listen(ctx, l.Endpoint("gRPC", "--grpc-port"))
	}
	return err
}

// flush bounds the writing of finished responses when the servers stop.
const flush = 5 * time.Second

func (g *Gateway) serveHTTP(ctx context.Context, engine *core.Gateway) error {
	if g.http == nil {
		<-ctx.Done()
		return nil
	}
	restricted, err := restrictions("--http-restricted-api", g.config.Connections.HTTPRestrict)
	if err != nil {
		return err
	}
	handler := rest.New(engine, rest.Options{
		Options: g.path("http", restricted), MaxInput: g.config.MaxInput, StallTimeout: g.config.stallTimeout(), Explain: g.explain,
	})
	// No request timeout: models may take long, and clients set deadlines.
	server := &http.Server{Handler: closing(handler, engine), ReadHeaderTimeout: time.Minute, IdleTimeout: 5 * time.Minute}
	return serve.HTTP(ctx, server, g.bounded(g.http, g.config.Connections.MaxHTTP, "--http-max-connections"), flush)
}

// path are the options of a protocol's calls.
func (g *Gateway) path(protocol string, restricted core.Restrictions) path.Options {
	return path.Options{
		Restricted: restricted, Tenants: g.policy.tenants, Costs: g.policy.costs, Budget: g.budget, Cache: g.cache, Meter: g.meters.Protocol(protocol),
		Protocol: protocol, Ended: g.recent.Add, Audit: g.audit(protocol),
		Log: func(method string, err error) {
			g.deps.Log.Error("call failed", append(obs.Err(err), zap.String("method", method))...)
		},
	}
}

// audit logs the calls of a protocol that may change what the server does: who has called,
// and what became of it. They are logged under a policy alone; without one nobody knows who calls.
func (g *Gateway) audit(protocol string) func(*path.Call, error) {
	log := g.deps.Log
	return func(c *path.Call, err error) {
		if g.policy.tenants.Current() == nil {
			return
		}
		tenant, result := "", "ok"
		if c.Tenant != nil {
			tenant = c.Tenant.Name
		}
		if err != nil {
			result = string(errs.Of(err))
		}
		log.Info("audit: administrative call", zap.String("tenant", tenant), zap.String("protocol", protocol), zap.String("api", string(c.API)),
			zap.String("method", c.Method), zap.String("model", c.Model), zap.String("result", result))
	}
}

// closing closes connections after their response once the gateway shuts down;
// the next request on a kept connection would fail.
func closing(h http.Handler, engine *core.Gateway) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if engine.ShuttingDown() {
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
