package main

import (
	"context"
	"io"
	"time"

	"github.com/alecthomas/kong"
	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/cmd/nereid/internal/embedded"
	"github.com/nereid-serving/nereid/libs/config"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/services/registry"
)

// serve runs all services in one process. Its flags are Triton's where Triton
// has the setting.
type serve struct {
	ModelRepository []string      `name:"model-repository" aliases:"model-store" sep:"none" placeholder:"DIR" group:"Models" help:"Model repository; repeat the flag for several. Required."`
	LoadThreads     int           `name:"model-load-thread-count" default:"4" group:"Models" help:"How many model versions are loaded at the same time."`
	LoadRetries     int           `name:"model-load-retry-count" default:"0" group:"Models" help:"How often the load of a model version that fails is tried again."`
	ControlMode     string        `name:"model-control-mode" default:"none" enum:"none,poll,explicit" group:"Models" help:"When models are loaded: none is all of them at the start; poll follows the repositories as well; explicit is what --load-model and the load API name."`
	PollSecs        int           `name:"repository-poll-secs" default:"15" group:"Models" help:"How often the repositories are read again under --model-control-mode=poll, in seconds."`
	LoadModel       []string      `name:"load-model" sep:"none" placeholder:"NAME" group:"Models" help:"Model to load at the start under --model-control-mode=explicit; repeat the flag for several, or give * for all."`
	Namespacing     config.Switch `name:"model-namespacing" default:"false" group:"Models" help:"Serve models of one name in several repositories beside each other, told apart by their repositories."`
	ConfigName      string        `name:"model-config-name" placeholder:"NAME" group:"Models" help:"Read configs/NAME.pbtxt of the models that have it, instead of config.pbtxt."`
	NoAutoComplete  bool          `name:"disable-auto-complete-config" group:"Models" help:"Take nothing from model files: each model needs a config.pbtxt that lists its inputs and outputs."`
	StrictConfig    config.Switch `name:"strict-model-config" default:"false" group:"Models" help:"Older form of --disable-auto-complete-config."`

	ID              string        `name:"id" default:"triton" group:"Server" help:"Name of the server in its metadata."`
	ExitTimeout     int           `name:"exit-timeout-secs" default:"30" group:"Server" help:"How long requests in flight may take when the server stops, in seconds."`
	ExitOnError     config.Switch `name:"exit-on-error" default:"true" group:"Server" help:"End the process when a model cannot be loaded at the start."`
	StrictReadiness config.Switch `name:"strict-readiness" default:"true" group:"Server" help:"Be ready only while every model is; else from the end of the start on."`
	Data            string        `name:"data" placeholder:"DIR" group:"Server" help:"Directory for the state of the control plane. Without it the state is temporary."`

	AllowHTTP    config.Switch `name:"allow-http" default:"true" group:"HTTP" help:"Serve HTTP."`
	HTTPAddress  string        `name:"http-address" default:"0.0.0.0" group:"HTTP" help:"Address to listen on, or unix:PATH."`
	HTTPPort     int           `name:"http-port" default:"8000" group:"HTTP" help:"Port to listen on; 0 is any free one."`
	HTTPMaxInput int64         `name:"http-max-input-size" default:"67108864" group:"HTTP" help:"Largest JSON body, tensor in it, or decompressed body, in bytes."`

	AllowGRPC   config.Switch `name:"allow-grpc" default:"true" group:"gRPC" help:"Serve gRPC."`
	GRPCAddress string        `name:"grpc-address" default:"0.0.0.0" group:"gRPC" help:"Address to listen on, or unix:PATH."`
	GRPCPort    int           `name:"grpc-port" default:"8001" group:"gRPC" help:"Port to listen on; 0 is any free one."`

	Connections connections `embed:""`

	AllowMetrics   config.Switch `name:"allow-metrics" default:"true" group:"Metrics" help:"Serve /metrics."`
	MetricsAddress string        `name:"metrics-address" placeholder:"ADDRESS" group:"Metrics" help:"Address to listen on; without it that of HTTP."`
	MetricsPort    int           `name:"metrics-port" default:"8002" group:"Metrics" help:"Port to listen on; 0 is any free one."`
	CPUMetrics     config.Switch `name:"allow-cpu-metrics" default:"true" group:"Metrics" help:"Show how busy the machine is: nv_cpu_*."`
	GPUMetrics     config.Switch `name:"allow-gpu-metrics" default:"true" group:"Metrics" help:"Taken for the sake of Triton's command lines: there are no metrics of GPUs yet."`
	MetricsPeriod  int           `name:"metrics-interval-ms" default:"2000" group:"Metrics" help:"How often the machine is looked at, in milliseconds."`
	MetricsConfig  []string      `name:"metrics-config" sep:"none" placeholder:"KEY=VALUE" group:"Metrics" help:"How the times of requests are shown: counter_latencies (true), histogram_latencies (false) and summary_latencies (false) switch forms; summary_quantiles is pairs of a quantile and its error, such as 0.5:0.05,0.99:0.001; repeat the flag for several."`
	MetricsLabel   []string      `name:"metrics-label" sep:"none" placeholder:"NAME=VALUE" group:"Metrics" help:"Label of all metrics: cluster, node or pod; repeat the flag for several."`

	MaxRequestBytes   int64 `name:"max-request-bytes" default:"4294967296" group:"Queues" help:"Most bytes that requests hold, from their arrival to their answers; more are refused as memory_full. 0 is no bound."`
	MaxQueuedRequests int   `name:"max-queued-requests" default:"262144" group:"Queues" help:"Most requests that wait, over all models; more are refused as queue_full. 0 is no bound."`
	MaxQueuedBytes    int64 `name:"max-queued-bytes" default:"4294967296" group:"Queues" help:"Most bytes of inputs that wait, over all models. 0 is no bound."`

	Library       string   `name:"onnxruntime-library" default:"${onnxruntime}" placeholder:"FILE" group:"Backends" help:"ONNX Runtime's shared library, 1.24 or newer: the one that make deps fetched, or else the system's."`
	BackendConfig []string `name:"backend-config" sep:"none" placeholder:"BACKEND,KEY=VALUE" group:"Backends" help:"A setting of a backend, or of all without a name: onnxruntime has enable-global-threadpool, intra_op_thread_count, inter_op_thread_count and default-max-batch-size; repeat the flag for several."`
	HostPolicy    []string `name:"host-policy" sep:"none" placeholder:"POLICY,KEY=VALUE" group:"Backends" help:"The cores of instances of a host policy, such as cpu: cpu-cores=0-3 or numa-node=0; repeat the flag for several."`

	LogVerbose int           `name:"log-verbose" default:"0" group:"Log" help:"1 and more show debugging."`
	LogInfo    config.Switch `name:"log-info" default:"true" group:"Log" help:"Show information."`
	LogWarning config.Switch `name:"log-warning" default:"true" group:"Log" help:"Show warnings."`
	LogError   config.Switch `name:"log-error" default:"true" group:"Log" help:"Show errors."`
	LogFormat  string        `name:"log-format" default:"text" enum:"text,json,default,ISO8601" group:"Log" help:"text or json; Triton's default and ISO8601 are text."`
	LogFile    string        `name:"log-file" placeholder:"FILE" group:"Log" help:"Where to log instead of standard error."`

	// Triton's other flags.
	Idle    idle    `embed:""`
	Refused refused `embed:""`
}

// Help shows examples.
func (serve) Help() string {
	return `Triton's other flags are taken where they change nothing and refused where they would: docs/reference/cli.md lists them.

Examples:

    nereid serve --model-repository models/
    nereid serve --model-repository models/ --model-control-mode explicit --load-model digits
    nereid serve --model-repository models/ --http-port 9000 --allow-grpc false --log-verbose 1`
}

// maxPollSecs is a year.
const maxPollSecs = 365 * 24 * 60 * 60

// Validate refuses what no service checks itself.
func (s *serve) Validate(command *kong.Context) error {
	if err := checkEffects(command); err != nil {
		return err
	}
	switch {
	case len(s.ModelRepository) == 0:
		return errs.New(errs.ConfigInvalid, "no model repository: give --model-repository=DIR")
	case s.PollSecs <= 0 || s.PollSecs > maxPollSecs:
		return errs.New(errs.ConfigInvalid, "--repository-poll-secs is %d: want 1 to %d", s.PollSecs, maxPollSecs)
	case s.ExitTimeout < 0:
		return errs.New(errs.ConfigInvalid, "--exit-timeout-secs is %d: want 0 or more", s.ExitTimeout)
	}
	return nil
}

// Run serves until ctx is done and everything has drained.
func (s *serve) Run(ctx context.Context, command *kong.Context, stdout io.Writer) error {
	log, closeLog, err := obs.NewLogger(obs.LogConfig{
		Verbose: s.LogVerbose, Info: s.LogInfo.On, Warning: s.LogWarning.On, Error: s.LogError.On,
		Format: s.LogFormat, File: s.LogFile,
	})
	if err != nil {
		return err
	}
	defer closeLog()
	if names := withoutEffect(command); len(names) > 0 {
		log.Info("flags have no effect", zap.Strings("flags", names), zap.String("reasons", "docs/reference/cli.md"))
	}
	c, err := s.config()
	if err != nil {
		return err
	}
	server, err := embedded.New(c, log, stdout)
	if err != nil {
		return err
	}
	return server.Run(ctx)
}

func (s *serve) config() (embedded.Config, error) {
	c := embedded.Default()
	if err := s.backends(&c); err != nil {
		return c, err
	}
	if err := s.metrics(&c); err != nil {
		return c, err
	}
	c.Registry.Repositories, c.Registry.Namespacing = s.ModelRepository, s.Namespacing.On
	c.Registry.Control, c.Registry.LoadModels = registry.Control(s.ControlMode), s.LoadModel
	c.Registry.Poll = time.Duration(s.PollSecs) * time.Second
	c.Registry.Models.ConfigName, c.Registry.Models.Strict = s.ConfigName, s.NoAutoComplete || s.StrictConfig.On
	c.Worker.LoadConcurrency, c.Worker.LoadRetries = s.LoadThreads, s.LoadRetries
	c.Worker.OnnxRuntimeLibrary = s.Library
	c.Scheduler.MaxQueuedRequests, c.Scheduler.MaxQueuedBytes = s.MaxQueuedRequests, s.MaxQueuedBytes
	c.Gateway.ServerName, c.Gateway.Version = s.ID, release
	http, grpc := &c.Gateway.HTTP.Listener, &c.Gateway.GRPC.Listener
	http.Enabled, http.Address, http.Port = s.AllowHTTP.On, s.HTTPAddress, s.HTTPPort
	grpc.Enabled, grpc.Address, grpc.Port = s.AllowGRPC.On, s.GRPCAddress, s.GRPCPort
	if err := s.Connections.configure(&c.Gateway); err != nil {
		return c, err
	}
	c.Gateway.MaxInput, c.Gateway.MaxRequestBytes = s.HTTPMaxInput, s.MaxRequestBytes
	c.Gateway.StrictReadiness = s.StrictReadiness.On
	c.Gateway.ExitTimeout = time.Duration(s.ExitTimeout) * time.Second
	c.Data, c.ExitOnError, c.Version = s.Data, s.ExitOnError.On, release
	return c, nil
}
