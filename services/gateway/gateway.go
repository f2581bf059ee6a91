// Package gateway implements the service that clients call over HTTP and gRPC. It checks requests against its
// snapshot of the models, submits them to the scheduler, and ends each request exactly once.
//
// It learns about models only from the state buckets, and writes only its own lease.
package gateway

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"runtime"
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
	"github.com/nereid-serving/nereid/libs/recording"
	"github.com/nereid-serving/nereid/libs/serve"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/cache"
	"github.com/nereid-serving/nereid/services/gateway/internal/calls"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/explain"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
	"github.com/nereid-serving/nereid/services/gateway/internal/metered"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/record"
	"github.com/nereid-serving/nereid/services/gateway/internal/redis"
	"github.com/nereid-serving/nereid/services/gateway/internal/regions"
	"github.com/nereid-serving/nereid/services/gateway/internal/rest"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc"
	"github.com/nereid-serving/nereid/services/gateway/internal/turns"
)

// Dispatcher submits requests to their scheduler: see [core.Dispatcher].
type Dispatcher = core.Dispatcher

// StatisticsSource returns the statistics of a pool: see [core.StatisticsSource].
type StatisticsSource = core.StatisticsSource

// Repository loads and unloads models on request: see [core.Repository].
type Repository = core.Repository

// Cluster returns the state of the whole cluster: see [rpc.Cluster].
type Cluster = rpc.Cluster

// IndexEntry is one line of the repository index.
type IndexEntry = core.IndexEntry

// Unloaded is the reason of an index entry whose model was unloaded on request.
const Unloaded = core.CauseUnloaded

// Deps are a gateway's dependencies.
type Deps struct {
	Bus        *bus.Bus
	Dispatcher Dispatcher
	// Requests is the table that the gateway shares with its [Remote]. If nil, the gateway makes its own.
	Requests *Requests
	// Reachable reports whether a pool's scheduler is reachable. If nil, every scheduler is.
	Reachable func(pool string) bool
	// Connected returns a channel that is closed when the current stream to a worker's incarnation ends, or nil
	// if there is no stream. If Connected itself is nil, a worker is lost as soon as its lease expires.
	Connected func(worker uint64) <-chan struct{}
	// GPUs are the GPUs whose memory clients may share. If nil, clients share no GPU memory.
	GPUs GPUs
	// Registered is called with the gateway's incarnation before the first request. It may be nil.
	Registered func(incarnation uint64)
	// Statistics returns the statistics source of a pool.
	Statistics func(pool string) StatisticsSource
	// CacheUsed reports what the response cache did for each request of a pool, for the pool's statistics. It
	// must not block. It may be nil.
	CacheUsed func(pool string, u infer.CacheUse)
	// EnsembleEnded reports the end of each request for an ensemble of a pool, for the pool's statistics. It
	// must not block. It may be nil.
	EnsembleEnded func(pool string, e infer.EnsembleEnd)
	// Repository loads and unloads models. If nil, the gateway cannot.
	Repository Repository
	// Cluster returns the cluster's state. If nil, the gateway does not offer that call.
	Cluster Cluster
	// SharedQuotas says that other gateways serve the same tenants and share their limits with this one.
	SharedQuotas bool
	// Clock timestamps the requests.
	Clock *mono.System
	// Pool is the memory pool of tensors.
	Pool    *tensor.Pool
	Metrics prometheus.Registerer
	// Logs is the sink behind Log. SetLog changes log settings of all services and returns the settings that
	// differ from the flags. If both are nil, the gateway has no logging extension.
	Logs   *obs.Log
	SetLog func(ctx context.Context, changes map[string]string) (obs.LogSettings, error)
	// Gathered collects this process's metrics, from which the gateway reports the load of language models to
	// clients. If nil, it reports none.
	Gathered prometheus.Gatherer
	Log      *zap.Logger
}

// Gateway is one gateway. It is the Responder of its requests and the Caller for models in its process. It is
// safe for concurrent use.
type Gateway struct {
	config Config
	deps   Deps
	meters *metered.Metrics
	budget *memory.Budget
	turns  *turns.Turns
	cache  *cache.Cache  // nil without one
	redis  *redis.Values // of the cache; nil without one
	policy *policies
	shared *regions.Regions // of clients' memory; nil where they share none
	recent *explain.Requests
	// recordings are the recordings that clients have requested.
	recordings *record.Recordings

	// engine and calls are set once the lease has assigned the incarnation.
	engine     atomic.Pointer[core.Gateway]
	calls      atomic.Pointer[calls.Caller]
	registered chan struct{} // closed when engine is set
	started    chan struct{} // closed at the end of the start
	bound      chan struct{} // closed when the listeners are open
	http       net.Listener  // valid after bound, nil if not enabled
	grpc       net.Listener
	// connections are the HTTP connections; set once HTTP is served.
	connections atomic.Pointer[rest.Connections]
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
	g := &Gateway{config: c, deps: deps, budget: memory.NewBudget(c.MaxRequestBytes), turns: turns.New(max(runtime.GOMAXPROCS(0)/2, 1)), registered: make(chan struct{}), started: make(chan struct{}), bound: make(chan struct{})}
	g.meters = metered.New(deps.Metrics)
	g.recent = explain.New(c.ExplainedRequests, deps.Clock.Wall)
	g.recordings = record.New(record.Deps{Allowed: c.AllowRecording.On, Server: c.ID, Budget: g.budget, Now: deps.Clock.Now, Wall: deps.Clock.Wall})
	g.policy = newPolicies(c.Policy, c.RequirePolicy, g.meters, deps.Metrics, deps.Log)
	var err error
	if g.cache, g.redis, err = openCache(&c.Cache, deps); err != nil {
		return nil, err
	}
	g.shared = c.SharedMemory.open(deps.GPUs, deps.Metrics)
	deps.Metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "nereid_gateway_in_flight_requests", Help: "Requests without their final response.",
	}, func() float64 { return float64(g.InFlight()) }), prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "nereid_gateway_request_bytes", Help: "Bytes that requests hold, from their arrival to their responses.",
	}, func() float64 { return float64(g.budget.Reserved()) }))
	return g, nil
}

// explain reports what happened to a request, of this gateway or another.
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

// Refused returns why the gateway refuses all calls except probes, or nil if it does not.
func (g *Gateway) Refused() error { return g.policy.missing() }

// Fail declares that there is no repository and never will be: see [core.Gateway.Fail]. It takes effect once
// the gateway has registered, and returns then or when ctx is done.
func (g *Gateway) Fail(ctx context.Context) {
	select {
	case <-g.registered:
		g.engine.Load().Fail()
	case <-ctx.Done():
	}
}

// Unreachable lists the pools that have ready models but no reachable scheduler.
func (g *Gateway) Unreachable() []string {
	if engine := g.engine.Load(); engine != nil {
		return engine.Unreachable()
	}
	return nil
}

// Started returns a channel that is closed when the start is over: the registry's scan is known and every model
// in it is ready or has failed.
func (g *Gateway) Started() <-chan struct{} { return g.started }

// Bound returns a channel that is closed when the listeners are open. Addresses is valid then.
func (g *Gateway) Bound() <-chan struct{} { return g.bound }

// Addresses returns the addresses of the open listeners, empty for a disabled protocol.
func (g *Gateway) Addresses() (http, grpc string) { return addressOf(g.http), addressOf(g.grpc) }

// Index lists the models with their states.
func (g *Gateway) Index() []IndexEntry {
	if engine := g.engine.Load(); engine != nil {
		return engine.Index(false)
	}
	return nil
}

// Run serves until ctx is done. It then reports not ready for the exit notice, refuses new requests, drains
// those in flight within the exit timeout, and returns nil.
func (g *Gateway) Run(ctx context.Context) error {
	defer g.shared.Close()
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
	if err := g.open(ctx, serving, group); err != nil || serving.Err() != nil {
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

// open opens the listeners once the gateway knows which policy applies; earlier calls would be subject to no
// policy.
func (g *Gateway) open(ctx, serving context.Context, group *errgroup.Group) error {
	if g.deps.SharedQuotas {
		short := g.policy.tenants.Share()
		group.Go(func() error { return g.shareQuotas(serving, short) })
	}
	group.Go(func() error { return g.policy.run(serving, g.deps.Bus) })
	group.Go(func() error { return g.policy.recall(serving, g.deps.Bus) })
	group.Go(func() error { return g.deps.Bus.Answer(serving, bus.AskGateways, g.recent.Answer) })
	if g.policy.await(ctx, serving); serving.Err() != nil {
		return nil //nolint:nilerr // the part that has failed says why
	}
	if err := g.listen(ctx); err != nil {
		return err
	}
	close(g.bound)
	return nil
}

// renew renews the gateway's lease until ctx is done. If the lease cannot be released then because NATS is
// unavailable, the stop still succeeds.
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
	var logs core.Logging
	extensions := extensions()
	if g.deps.Logs != nil {
		logs = &logging{g.deps.Logs, g.deps.SetLog}
		extensions = append(extensions, "logging")
	}
	engine := core.New(
		core.ServerInfo{Name: g.config.ServerName, Version: g.config.Version, Extensions: extensions},
		core.Deps{
			Logging:    logs,
			Dispatcher: g.deps.Dispatcher, Reachable: g.deps.Reachable, Refused: g.policy.missing, Statistics: g.deps.Statistics, Repository: g.deps.Repository,
			Requests: g.deps.Requests, Clock: g.deps.Clock, Pool: g.deps.Pool, StatisticsMissing: g.statisticsMissing, EnsembleEnded: g.deps.EnsembleEnded, OutputMissing: g.outputMissing, Cache: g.cache,
			StrictReadiness: g.config.StrictReadiness.On,
		})
	g.engine.Store(engine)
	close(g.registered)
	return engine
}

func (g *Gateway) statisticsMissing(pool string, err error) {
	g.meters.StatisticsMissing()
	g.deps.Log.Warn("a pool's scheduler does not answer: its models are missing in the statistics", append(obs.Err(err), zap.String("pool", pool))...)
}

// outputMissing logs the warning that Triton logs.
func (g *Gateway) outputMissing(ensemble infer.ModelRef, output string) {
	g.deps.Log.Warn("Composing models did not output tensor "+output, obs.Model(ensemble)...)
}

// extensions lists the protocol extensions of the gateway, in Triton's order.
func extensions() []string {
	return []string{"classification", "sequence", "model_repository", "model_repository(unload_dependents)", "schedule_policy", "model_configuration", "system_shared_memory", "cuda_shared_memory", "binary_tensor_data", "parameters", "statistics"}
}

// InFlight returns the number of requests that still lack their final response. It is safe for concurrent use.
func (g *Gateway) InFlight() int64 { return g.deps.Requests.InFlight() }

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

// flush bounds how long stopping servers may take to write finished responses.
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
	options := rest.Options{
		Options: g.path("http", restricted), MaxInput: g.config.MaxInput, HealthBody: g.config.HealthBody == "json", StallTimeout: g.config.stallTimeout(), Explain: g.explain, Recordings: g.recordings, Recorded: g.recorded,
	}
	if options.Forward, err = path.ForwardPattern("--http-header-forward-pattern", g.config.Connections.HTTPHeaders); err != nil {
		return err
	}
	if g.deps.Gathered != nil {
		options.Load = (&load{metrics: g.deps.Gathered}).get
	}
	handler := rest.New(engine, options)
	// No request timeout: models may take long, and clients set deadlines.
	server := &http.Server{Handler: handler, ReadHeaderTimeout: g.config.stallTimeout(), IdleTimeout: 5 * time.Minute}
	g.followConnections(server, engine)
	secured, err := g.config.Connections.httpTLS()
	if err != nil {
		return err
	}
	if err := secured.Secure(server, g.deps.Log); err != nil {
		return err
	}
	listener := g.bounded(g.http, g.config.Connections.MaxHTTP, httpConnectionBytes, "--http-max-connections")
	listener = serve.WithWriteTimeout(listener, g.config.stallTimeout())
	connections := rest.NewConnections(g.budget, g.turns, options.Meter, g.closed())
	g.connections.Store(connections)
	return serve.HTTP(ctx, server, connections.Count(server, listener), flush)
}

// path returns the options for the calls of a protocol.
func (g *Gateway) path(protocol string, restricted core.Restrictions) path.Options {
	meter := g.meters.Protocol(protocol)
	return path.Options{
		Restricted: restricted, Tenants: g.policy.tenants, Costs: g.policy.costs, Budget: g.budget, Cache: g.cache, Regions: g.shared, Meter: meter,
		Protocol: protocol, Observers: []path.Observer{{Ended: meter.Ended}, {Ended: g.recent.Add}, g.recordings.Observer()}, Audit: g.audit(protocol),
		Log: func(method string, err error) {
			g.deps.Log.Error("call failed", append(obs.Err(err), zap.String("method", method))...)
		},
	}
}

// audit returns a function that logs calls that may change what the server does: the caller and the result. It
// logs only under a policy, since without one callers are unknown.
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

// recorded logs the start of a recording, and its end with a summary. It logs with or without a policy: the log
// must show who has seen other callers' requests.
func (g *Gateway) recorded(c *path.Call, o record.Options, is *recording.Summary) {
	fields := []zap.Field{
		zap.Strings("models", o.Models), zap.Strings("tenants", o.Tenants), zap.Float64("share", o.Share), zap.Bool("answers", o.Answers),
	}
	if c.Tenant != nil {
		fields = append(fields, zap.String("by", c.Tenant.Name))
	}
	if is == nil {
		g.deps.Log.Info("audit: recording started", fields...)
		return
	}
	g.deps.Log.Info("audit: recording ended", append(fields, zap.Int64("requests", is.Requests), zap.Int64("lost", is.Lost), zap.String("because", cmp.Or(is.Ended, "client")))...)
}

func addressOf(l net.Listener) string {
	if l == nil {
		return ""
	}
	return l.Addr().String()
}
