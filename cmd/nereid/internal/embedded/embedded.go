// Package embedded wires the services into one process: the same packages as
// in a cluster, with Go calls between gateway, scheduler and worker, and an
// embedded NATS server for their shared state.
package embedded

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/cmd/nereid/internal/layout"
	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/process"
	"github.com/nereid-serving/nereid/libs/tensor"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/gateway"
	"github.com/nereid-serving/nereid/services/registry"
	"github.com/nereid-serving/nereid/services/scheduler"
	"github.com/nereid-serving/nereid/services/worker"
)

// lease is for how long each service counts as alive without renewing its
// lease. All of them die together, and no other process can take over; a lease that
// ran out could only mean that the processors are overloaded. The worker's
// would then take all models away from clients, and the registry's would end
// the loads under way.
const lease = time.Minute

// keepMemory is how many bytes of free tensor memory the process keeps for
// the next requests.
const keepMemory = 256 << 20

// Server is the process.
type Server struct {
	config  Config
	admin   process.Admin
	log     *zap.Logger
	stdout  io.Writer
	metrics *obs.Metrics
}

// New checks the configuration; it opens nothing.
func New(c Config, log *zap.Logger, stdout io.Writer) (*Server, error) {
	admin, err := c.complete()
	if err != nil {
		return nil, err
	}
	return &Server{config: c, admin: admin, log: log, stdout: stdout, metrics: obs.NewMetrics(c.Version, admin.Labels)}, nil
}

// Run serves until ctx is done and everything has drained, or until a part
// fails.
func (s *Server) Run(ctx context.Context) error {
	process.CollectLate()
	process.CollectWithin(s.config.Gateway.MaxRequestBytes)
	arranged, err := layout.Arrange(s.config.Models)
	if err != nil {
		return err
	}
	defer arranged.Remove()
	s.config.Registry.Repositories = append(slices.Clone(s.config.Registry.Repositories), arranged.Repositories...)
	devices, err := s.config.devices(s.log)
	if err != nil {
		return err
	}
	if len(devices) > 0 {
		return s.serveDevices(ctx, devices)
	}
	b, err := bus.Open(ctx, bus.Config{Dir: s.config.Data, Name: "nereid", Lease: lease, Log: s.log})
	if err != nil {
		return err
	}
	discard, err := s.keepArtifacts()
	if err == nil {
		err = s.serve(ctx, b)
	}
	return errors.Join(err, b.Close(), discard())
}

// keepArtifacts decides where the files go that are given through the load API:
// beside the state whose models are made of them.
func (s *Server) keepArtifacts() (discard func() error, err error) {
	if s.config.Data != "" {
		s.config.Registry.Artifacts, err = filepath.Abs(filepath.Join(s.config.Data, "artifacts"))
		return func() error { return nil }, err
	}
	dir, err := os.MkdirTemp("", "nereid-artifacts-")
	s.config.Registry.Artifacts = dir
	return func() error { return os.RemoveAll(dir) }, err
}

func (s *Server) serve(ctx context.Context, b *bus.Bus) error {
	if err := b.EnsureBuckets(ctx); err != nil {
		return err
	}
	if err := errors.Join(forgetWorkers(ctx, b), forgetLog(ctx, b)); err != nil {
		return err
	}
	parts, err := s.parts(b)
	if err != nil {
		return err
	}
	return lifecycle.Run(ctx, slices.Concat(s.followLog(b), parts)...)
}

// forgetWorkers ends the leases that a killed process has left in the data, since
// its models would count as ready before this one has loaded any.
func forgetWorkers(ctx context.Context, b *bus.Bus) error {
	workers, err := bus.NewBucket(b, bus.Workers, bus.Values[*nereidv1.WorkerValue]())
	if err != nil {
		return err
	}
	ids, err := workers.Keys(ctx)
	for _, id := range ids {
		err = errors.Join(err, workers.Delete(ctx, id, 0))
	}
	return err
}

// forgetLog has the log begin with its flags, as they stand in the command.
func forgetLog(ctx context.Context, b *bus.Bus) error {
	settings, err := bus.NewBucket(b, bus.Settings, bus.Values[*nereidv1.SettingValue]())
	if err != nil {
		return err
	}
	return settings.Delete(ctx, bus.LogSetting, 0)
}

// followLog is the part that has changes of the log's settings in force, where the log can
// change.
func (s *Server) followLog(b *bus.Bus) []lifecycle.Part {
	if s.config.Logs == nil {
		return nil
	}
	return []lifecycle.Part{{Name: "log settings", Run: func(ctx context.Context) error { return control.FollowLog(ctx, b, s.config.Logs) }}}
}

// parts makes the services. They stop in reverse: the gateway drains while
// all that it needs still runs.
func (s *Server) parts(b *bus.Bus) ([]lifecycle.Part, error) {
	clock, pool, before := mono.New(), tensor.NewPool(s.config.Gateway.FreeTensorBytes(keepMemory)), &front{}
	sched, err := scheduler.New(s.config.Scheduler, scheduler.Deps{
		Bus: b, Clock: clock, Responder: before, Metrics: s.metrics, Log: s.log,
	})
	if err != nil {
		return nil, err
	}
	work, err := worker.New(s.config.Worker, worker.Deps{
		Bus: b, Scheduler: sched, Responder: before, Calls: before, Control: before, Clock: clock, Pool: pool, Metrics: s.metrics, Log: s.log,
	})
	if err != nil {
		return nil, err
	}
	reg, err := registry.New(s.config.Registry, registry.Deps{
		Bus: b, Log: s.log,
		Queues:   func(ctx context.Context, _ string) ([]infer.Queue, error) { return sched.Queues(ctx) },
		Complete: func(ctx context.Context, _ string, d control.Draft) ([]byte, error) { return work.Complete(ctx, d) },
	})
	if err != nil {
		return nil, err
	}
	gate, err := gateway.New(s.config.Gateway, gateway.Deps{
		Bus: b, Dispatcher: sched, CacheUsed: func(_ string, u infer.CacheUse) { sched.CacheUsed(u) },
		EnsembleEnded: func(_ string, e infer.EnsembleEnd) { sched.EnsembleEnded(e) },
		Repository:    reg, Cluster: reg, Statistics: func(string) gateway.StatisticsSource { return sched }, Clock: clock, Pool: pool, Metrics: s.metrics, Gathered: s.metrics.Gatherer(), Log: s.log, Logs: s.config.Logs, SetLog: reg.SetLog,
	})
	if err != nil {
		return nil, err
	}
	before.gateway = gate
	return []lifecycle.Part{
		{Name: "metrics", Run: s.serveMetrics},
		{Name: "host", Run: s.watchHost},
		{Name: "memory", Run: func(ctx context.Context) error { return process.ReturnMemory(ctx, pool) }},
		{Name: "registry", Run: func(ctx context.Context) error { return s.runRegistry(ctx, reg.Run, gate) }},
		{Name: "scheduler", Run: sched.Run},
		{Name: "worker", Run: work.Run},
		{Name: "gateway", Run: gate.Run},
		{Name: "start", Run: (&start{server: s, gateway: gate}).Run},
	}, nil
}

// runRegistry runs the registry. Without ExitOnError a repository that cannot be
// read leaves the process without models: it responds and is not live, as Triton's.
func (s *Server) runRegistry(ctx context.Context, run func(context.Context) error, gate *gateway.Gateway) error {
	err := run(ctx)
	if s.config.ExitOnError.On || errs.Of(err) != errs.ConfigInvalid {
		return err
	}
	s.log.Error("no models are served: correct the model repository and start again", obs.Err(err)...)
	gate.Fail(ctx)
	<-ctx.Done()
	return nil
}

// front is the gateway towards the services behind it, which are made first. It is
// set before anything runs.
type front struct{ gateway *gateway.Gateway }

func (f *front) Respond(r *infer.Response) { f.gateway.Respond(r) }

func (f *front) Call(c *infer.Call, receive func(*infer.Response)) (cancel func()) {
	return f.gateway.Call(c, receive)
}

func (f *front) LoadModel(ctx context.Context, model, config string, files map[string][]byte) error {
	return f.gateway.LoadModel(ctx, model, config, files)
}

func (f *front) UnloadModel(ctx context.Context, model string, dependents bool) error {
	return f.gateway.UnloadModel(ctx, model, dependents)
}

func (f *front) ModelReady(model, version string) (bool, error) {
	return f.gateway.ModelReady(model, version)
}

func (s *Server) serveMetrics(ctx context.Context) error {
	return s.admin.Serve(ctx, s.metrics, nil, s.log)
}

// watchHost looks at the machine for the metrics alone.
func (s *Server) watchHost(ctx context.Context) error {
	h := s.config.Host.Host()
	h.Enabled = h.Enabled && s.admin.Enabled
	return h.Watch(ctx, s.metrics, s.log)
}
