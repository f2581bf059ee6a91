package scheduler

import (
	"runtime"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/scheduler/internal/stats"
)

// Config configures a scheduler.
type Config struct {
	// ID names this scheduler among the others; it is its key in the bucket
	// schedulers.
	ID string
	// Pool is the pool that the scheduler serves while it leads, and waits for
	// while another does.
	Pool string
	// Address is where its gRPC for the other services listens, as they dial
	// it; empty in one process.
	Address string
	// Version is the release, for the others' logs.
	Version string
	// TakeoverWait is for how long a new holder of the pool waits to hear what
	// its workers have begun. After that it fails the requests that may have
	// run on one of which it has not heard.
	TakeoverWait time.Duration
	// MaxQueuedRequests and MaxQueuedBytes bound what may wait in the pool,
	// over all models; beyond them requests are refused as queue_full. 0 is
	// no bound.
	MaxQueuedRequests int
	MaxQueuedBytes    int64
	// Latencies are the forms in which metrics show the times of requests.
	Latencies Latencies
}

// Latencies says in which forms metrics show the times of requests.
type Latencies = stats.Latencies

// Quantile is one of the summaries among [Latencies].
type Quantile = stats.Quantile

// Default returns bounds that only a flood reaches: a queue without a bound
// ends in memory running out.
func Default() Config {
	return Config{
		ID: "scheduler", Pool: infer.DefaultPool, TakeoverWait: 5 * time.Second, MaxQueuedRequests: 1 << 18, MaxQueuedBytes: int64(1<<30) * int64(max(runtime.NumCPU(), 4)),
		Latencies: stats.DefaultLatencies(),
	}
}

// Validate returns an error of the reason config_invalid that names the
// setting and what it may be.
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
	}
	return c.Latencies.Validate()
}
