package scheduler

import (
	"runtime"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/scheduler/internal/stats"
)

// Config configures a scheduler.
type Config struct {
	// Pool is the pool that the scheduler serves; it is its key in the bucket
	// schedulers.
	Pool string
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
		Pool: "default", MaxQueuedRequests: 1 << 18, MaxQueuedBytes: int64(1<<30) * int64(max(runtime.NumCPU(), 4)),
		Latencies: stats.DefaultLatencies(),
	}
}

// Validate returns an error of the reason config_invalid that names the
// setting and what it may be.
func (c Config) Validate() error {
	switch {
	case c.Pool == "":
		return errs.New(errs.ConfigInvalid, "the scheduler needs the name of its pool")
	case c.MaxQueuedRequests < 0:
		return errs.New(errs.ConfigInvalid, "--max-queued-requests is %d: want 0 (no bound) or more", c.MaxQueuedRequests)
	case c.MaxQueuedBytes < 0:
		return errs.New(errs.ConfigInvalid, "--max-queued-bytes is %d: want 0 (no bound) or more", c.MaxQueuedBytes)
	}
	return c.Latencies.Validate()
}
