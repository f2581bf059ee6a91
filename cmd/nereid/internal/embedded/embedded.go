// Package embedded wires the services into one process: the same packages as
// in a cluster, with Go calls between gateway, scheduler and worker, and a
// NATS server inside for the state that they agree by.
package embedded

import (
	"cmp"
	"context"
	"io"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/process"
	"github.com/nereid-serving/nereid/libs/serve"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway"
	"github.com/nereid-serving/nereid/services/registry"
	"github.com/nereid-serving/nereid/services/scheduler"
	"github.com/nereid-serving/nereid/services/worker"
)

// Config configures the process and its services.
type Config struct {
	Registry  registry.Config
	Scheduler scheduler.Config
	Worker    worker.Config
	Gateway   gateway.Config
	Admin     process.Admin
	Host      process.Host
	// Data is where the control plane's state is kept; empty is a temporary
	// directory.
	Data string
	// ExitOnError ends the process when a model cannot be loaded at the start.
	ExitOnError bool
	Version     string
}

// Default returns the services' defaults.
func Default() Config {
	c := Config{
		Registry: registry.Default(), Scheduler: scheduler.Default(), Worker: worker.Default(), Gateway: gateway.Default(),
		Admin:       process.Admin{Listener: serve.Listener{Enabled: true, Address: "0.0.0.0", Port: 8002}},
		Host:        process.Host{Enabled: true, Interval: 2 * time.Second},
		ExitOnError: true,
	}
	c.Registry.Models.Backends = worker.Backends()
	return c
}

// lease is for how long each service counts as alive without renewing its
// lease. All of them die together, and nobody else can take over; a lease that
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
	log     *zap.Logger
	stdout  io.Writer
	metrics *obs.Metrics
}

// Validate returns an error of the reason config_invalid that names the
// setting and what it may be.
func (c *Config) Validate() error {
	for _, part := range []interface{ Validate() error }{c.Registry, c.Scheduler, c.Worker, c.Gateway, c.Admin, c.Host} {
		if err := part.Validate(); err != nil {
			return err
		}
	}
	return nil
}

// New checks the configuration; it opens nothing.
func New(c Config, log *zap.Logger, stdout io.Writer) (*Server, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return &Server{config: c, log: log, stdout: stdout, metrics: obs.NewMetrics(c.Version, c.Admin.Labels)}, nil
}

// Run serves until ctx is done and everything has drained, or until a part
// fails.
func (s *Server) Run(ctx context.Context) error {
	process.CollectLate()
	b, err := bus.Open(ctx, bus.Config{Dir: s.config.Data, Name: "nereid", Lease: lease, Log: s.log})
	if err != nil {
		return err
	}
	discard, err := s.keepArtifacts()
	if err == nil {
		err = s.serve(ctx, b)
	}
	return cmp.Or(err, b.Close(), discard())
}

// keepArtifacts says where the files go that are given through the load API:
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
	parts, err := s.parts(b)
	if err != nil {
		return err
	}
	return lifecycle.Run(ctx, parts...)
}

// parts makes the services. They stop in reverse: the gateway drains while
// all that it needs still runs.
func (s *Server) parts(b *bus.Bus) ([]lifecycle.Part, error) {
	clock, pool, answers := mono.New(), tensor.NewPool(keepMemory), &answers{}
	sched, err := scheduler.New(s.config.Scheduler, scheduler.Deps{
		Bus: b, Clock: clock, Responder: answers, Metrics: s.metrics, Log: s.log,
	})
	if err != nil {
		return nil, err
	}
	reg, err := registry.New(s.config.Registry, registry.Deps{
		Bus: b, Log: s.log,
		Queues: func(ctx context.Context, _ string) ([]infer.Queue, error) { return sched.Queues(ctx) },
	})
	if err != nil {
		return nil, err
	}
	work, err := worker.New(s.config.Worker, worker.Deps{
		Bus: b, Scheduler: sched, Responder: answers, Clock: clock, Pool: pool, Metrics: s.metrics, Log: s.log,
	})
	if err != nil {
		return nil, err
	}
	gate, err := gateway.New(s.config.Gateway, gateway.Deps{
		Bus: b, Dispatcher: sched, Repository: reg, Cluster: reg, Statistics: func(string) gateway.StatisticsSource { return sched }, Clock: clock, Pool: pool, Metrics: s.metrics, Log: s.log,
	})
	if err != nil {
		return nil, err
	}
	answers.to = gate
	return []lifecycle.Part{
		{Name: "metrics", Run: s.serveMetrics},
		{Name: "host", Run: s.watchHost},
		{Name: "registry", Run: reg.Run},
		{Name: "scheduler", Run: sched.Run},
		{Name: "worker", Run: work.Run},
		{Name: "gateway", Run: gate.Run},
		{Name: "start", Run: (&start{server: s, gateway: gate}).Run},
	}, nil
}

// answers carries responses to the gateway, which is made last. It is set
// before anything runs.
type answers struct{ to infer.Responder }

func (a *answers) Respond(r *infer.Response) { a.to.Respond(r) }

func (s *Server) serveMetrics(ctx context.Context) error {
	return s.config.Admin.Serve(ctx, s.metrics, nil, s.log)
}

// watchHost looks at the machine for the metrics alone.
func (s *Server) watchHost(ctx context.Context) error {
	h := s.config.Host
	h.Enabled = h.Enabled && s.config.Admin.Enabled
	return h.Watch(ctx, s.metrics, s.log)
}
