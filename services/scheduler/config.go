package scheduler

import (
	"strings"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/resources"
	"github.com/nereid-serving/nereid/services/scheduler/core"
)

// Config configures a scheduler. A field with a name is a flag, and a setting of that name in files and in the
// environment; the others keep the values from [Default].
type Config struct {
	// ID identifies this scheduler; it is its key in the bucket schedulers.
	ID string `kong:"-"`
	// Pool is the pool that the scheduler serves while it leads, and stands by for while another scheduler does.
	Pool string `kong:"-"`
	// Address is where other services dial its gRPC; empty in a single process.
	Address string `kong:"-"`
	// Version is the release, for the logs of other services.
	Version string `kong:"-"`
	// TakeoverWait is how long a new leader of the pool waits for its workers to report what they have started. After
	// that it fails the requests that may have run on a worker that has not reported.
	TakeoverWait time.Duration `kong:"-"`

	MaxQueuedRequests int   `name:"max-queued-requests" default:"262144" group:"Queues" help:"The most waiting requests, over all models; more are refused with queue_full. 0 is no limit."`
	MaxQueuedBytes    int64 `name:"max-queued-bytes" default:"4294967296" group:"Queues" help:"The most bytes of waiting inputs, over all models. 0 is no limit."`

	RateLimit          string   `name:"rate-limit" default:"off" group:"Rate limiter" help:"execution_count makes executions wait for the resources in rate_limiter of their instance group, and instances take turns by its priority; off ignores both."`
	RateLimitResources []string `name:"rate-limit-resource" sep:"none" placeholder:"NAME:COUNT[:DEVICE]" group:"Rate limiter" help:"Amount of a resource on each device, on the device with that number, or in the pool if it is global; repeat the flag for each resource. Without any, the amount is the largest need of an instance."`

	DeviceBatches int `name:"device-batches" default:"0" group:"Queues" help:"How many batches of all models run on a device at a time. Under a policy, tenants then share the device by weight whichever models they use. 0 is as many as there are free instances."`

	DecisionLog      string `name:"decision-log" placeholder:"FILE" group:"Decision log" help:"Log the scheduler's events and decisions to this file, for nereid simulate. An existing file is replaced."`
	DecisionLogBytes int64  `name:"decision-log-bytes" default:"4294967296" group:"Decision log" help:"Largest size of the decision log, at which it ends. 0 is no limit."`

	MetricsConfig []string `name:"metrics-config" sep:"none" placeholder:"KEY=VALUE" group:"Metrics" help:"The latency metrics: counter_latencies (true), histogram_latencies (false) and summary_latencies (false) enable kinds; summary_quantiles is pairs of a quantile and its error, such as 0.5:0.05,0.99:0.001; repeat the flag for several."`
}

// Default returns the flags' defaults. Only a flood reaches the limits: without a limit the queue would grow until
// memory runs out.
func Default() Config {
	return Config{
		ID: "scheduler", Pool: infer.DefaultPool, TakeoverWait: 5 * time.Second,
		MaxQueuedRequests: 1 << 18, MaxQueuedBytes: 4 << 30, RateLimit: rateLimitOff, DecisionLogBytes: 4 << 30,
	}
}

// Validate returns an error with the reason config_invalid that names the setting and its valid values.
func (c Config) Validate() error {
	switch {
	case c.ID == "":
		return errs.New(errs.ConfigInvalid, "the scheduler needs an id")
	case c.TakeoverWait <= 0:
		return errs.New(errs.ConfigInvalid, "the scheduler waits %v for its workers: want more than 0", c.TakeoverWait)
	case !infer.ValidPool(c.Pool):
		return errs.New(errs.ConfigInvalid, "--pool=%s: give the name of a pool, without blanks, slashes, commas and =", c.Pool)
	case c.MaxQueuedRequests < 0:
		return errs.New(errs.ConfigInvalid, "--max-queued-requests is %d: want 0 (no bound) or more", c.MaxQueuedRequests)
	case c.MaxQueuedBytes < 0:
		return errs.New(errs.ConfigInvalid, "--max-queued-bytes is %d: want 0 (no bound) or more", c.MaxQueuedBytes)
	case c.DeviceBatches < 0:
		return errs.New(errs.ConfigInvalid, "--device-batches is %d: want 0 (no bound) or more", c.DeviceBatches)
	case c.DecisionLogBytes < 0:
		return errs.New(errs.ConfigInvalid, "--decision-log-bytes is %d: want 0 (no bound) or more", c.DecisionLogBytes)
	}
	if _, err := c.rateLimit(); err != nil {
		return err
	}
	_, _, err := c.latencies()
	return err
}

// The values of --rate-limit, case-insensitive.
const (
	rateLimitOff            = "off"
	rateLimitExecutionCount = "execution_count"
)

// rateLimit returns the rate limiter that the settings ask for, or nil. Errors have the reason config_invalid.
func (c Config) rateLimit() (*core.RateLimit, error) {
	counts, err := resources.Parse(c.RateLimitResources)
	if err != nil {
		return nil, err
	}
	switch strings.ToLower(c.RateLimit) {
	case rateLimitOff:
		return nil, nil
	case rateLimitExecutionCount:
		return &core.RateLimit{Counts: counts}, nil
	}
	return nil, errs.New(errs.ConfigInvalid, "--rate-limit=%s: want %s or %s", c.RateLimit, rateLimitOff, rateLimitExecutionCount)
}

// limits returns the core's limits.
func (c Config) limits() (core.Config, error) {
	rateLimit, err := c.rateLimit()
	return core.Config{MaxRequests: c.MaxQueuedRequests, MaxBytes: c.MaxQueuedBytes, RateLimit: rateLimit, DeviceBatches: c.DeviceBatches}, err
}
