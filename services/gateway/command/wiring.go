package command

import (
	"context"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/process"
	"github.com/nereid-serving/nereid/services/gateway"
)

// keepMemory bounds the free tensor memory that the pool retains, in bytes.
const keepMemory = 256 << 20

// wiring connects a gateway to the other services.
type wiring struct {
	process    *process.Process
	gateway    *gateway.Gateway
	statistics *statistics
}

func (c *Command) service(_ context.Context, p *process.Process) (process.Service, error) {
	service, g, err := c.Service(p)
	service.Parts = append(service.Parts, lifecycle.Part{Run: func(ctx context.Context) error { return logStart(ctx, g, p.Log) }})
	return service, err
}

// Service makes the service within a process, and returns its gateway.
func (c *Command) Service(p *process.Process) (process.Service, *gateway.Gateway, error) {
	config := c.config(p.ID)
	process.CollectWithin(config.MaxRequestBytes)
	pool, arena := c.Tensors.Memory(config.FreeTensorBytes(keepMemory), p.Log)
	w, clock := &wiring{process: p}, mono.New()
	w.statistics = newStatistics(p.Bus, control.Options{TLS: p.Dialing})
	requests := gateway.NewRequests()
	remote := gateway.NewRemote(gateway.RemoteDeps{
		ID: p.ID, Release: process.Release, Bus: p.Bus, TLS: p.Dialing, Pool: pool, Arena: arena, Clock: clock, Requests: requests, Calls: w, Control: w,
		Metrics: p.Metrics, Log: p.Log,
	})
	registries := control.NewFinder(p.Bus, control.RegistryRole)
	registry := control.NewRegistryClient(registries, control.Options{TLS: p.Dialing})
	var err error
	w.gateway, err = gateway.New(config, gateway.Deps{
		Bus: p.Bus, Dispatcher: remote, Requests: requests, Reachable: remote.Reachable, Connected: remote.Connected, GPUs: remote, CacheUsed: remote.CacheUsed, EnsembleEnded: remote.EnsembleEnded, Registered: remote.Register,
		Statistics: w.statistics.of, Repository: registry, Cluster: registry, Clock: clock, Pool: pool, Metrics: p.Metrics, Gathered: p.Metrics.Gatherer(), Log: p.Log, Logs: p.Logs, SetLog: registry.SetLog,
		SharedQuotas: true,
	})
	if err != nil {
		return process.Service{}, nil, err
	}
	return process.Service{
		Parts: slices.Concat([]lifecycle.Part{
			process.Processors(),
			{Name: "memory", Run: func(ctx context.Context) error { return process.ReturnMemory(ctx, pool) }},
			{Name: "registry", Run: registries.Run},
			{Name: "calls", Run: process.Until(func() error { registry.Close(); return nil })},
			{Name: "statistics", Run: w.statistics.Run},
		}, remote.Parts(), []lifecycle.Part{{Run: w.gateway.Run}}),
		Ready: w.ready,
	}, w.gateway, nil
}

// ready returns why the process is not ready.
func (w *wiring) ready() error {
	if err := w.gateway.Refused(); err != nil {
		return err
	}
	pools := w.gateway.Unreachable()
	if len(pools) > 0 {
		return process.NotReady(w.gateway.Ready(), "no scheduler is reachable of the pools "+strings.Join(pools, ", "))
	}
	return process.NotReady(w.gateway.Ready(), "not all models are ready")
}

// Call and the following methods serve the requests that models on workers make of other models.
func (w *wiring) Call(c *infer.Call, receive func(*infer.Response)) (cancel func()) {
	return w.gateway.Call(c, receive)
}

func (w *wiring) LoadModel(ctx context.Context, model, config string, files map[string][]byte) error {
	return w.gateway.LoadModel(ctx, model, config, files)
}

func (w *wiring) UnloadModel(ctx context.Context, model string, dependents bool) error {
	return w.gateway.UnloadModel(ctx, model, dependents)
}

func (w *wiring) ModelReady(model, version string) (bool, error) {
	return w.gateway.ModelReady(model, version)
}

// logStart logs the progress of the start.
func logStart(ctx context.Context, g *gateway.Gateway, log *zap.Logger) error {
	started := time.Now()
	select {
	case <-g.Bound():
		http, grpc := g.Addresses()
		log.Info("listening", zap.String("http", http), zap.String("grpc", grpc))
	case <-ctx.Done():
		return nil
	}
	select {
	case <-g.Started():
		g.Announce()
		log.Info("started", zap.Bool("ready", g.Ready()), zap.Duration("took", time.Since(started)))
	case <-ctx.Done():
	}
	<-ctx.Done()
	return nil
}
