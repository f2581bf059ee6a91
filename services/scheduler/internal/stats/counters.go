// Package stats counts what became of requests, per model version, and shows
// the counts as Prometheus metrics: Triton's nv_inference_* families with
// their names, labels and units, and Nereid's own beside them.
package stats

import (
	"sync/atomic"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
)

// failure is a failed request's reason in nv_inference_request_failure.
type failure uint8

const (
	rejected failure = iota
	canceled
	backend
	other
	failures
)

// failureLabels are Triton's values of the reason label.
func (f failure) String() string { return [...]string{"REJECTED", "CANCELED", "BACKEND", "OTHER"}[f] }

// Counters are the counts of one model version. They are safe for concurrent
// use.
type Counters struct {
	success    atomic.Uint64
	failed     [failures]atomic.Uint64
	inferences atomic.Uint64
	executions atomic.Uint64
	pending    atomic.Int64

	// Sums over successful requests, in nanoseconds.
	request, queue, input, infer, output atomic.Int64

	own ownSeries
}

// Submitted counts a request that has arrived.
func (c *Counters) Submitted() { c.pending.Add(1) }

// Refused counts a request that ended without having run.
func (c *Counters) Refused(reason errs.Reason) {
	c.failed[failureOf(reason)].Add(1)
	c.own.refused(reason)
}

// Started counts submitted requests that do not wait any more.
func (c *Counters) Started(requests int) { c.pending.Add(int64(-requests)) }

// Lost counts a request whose worker went away.
func (c *Counters) Lost() { c.failed[other].Add(1) }

// Executed counts a batch's executions.
func (c *Counters) Executed(done *infer.Completion) {
	c.executions.Add(uint64(done.Executions))
	if done.Executions > 0 {
		c.own.batchRows.Observe(float64(done.Rows))
	}
}

// Ended counts one request of a completed batch, which had rows rows and
// entered the scheduler at enqueued.
func (c *Counters) Ended(outcome infer.Outcome, rows int64, enqueued mono.Time, t *infer.Timing) {
	switch outcome {
	case infer.Succeeded:
		c.succeeded(rows, enqueued, t)
	case infer.Canceled:
		c.failed[canceled].Add(1)
	case infer.Rejected:
		c.failed[rejected].Add(1)
	default:
		c.failed[backend].Add(1)
	}
}

func (c *Counters) succeeded(rows int64, enqueued mono.Time, t *infer.Timing) {
	waited := t.Start.Sub(enqueued)
	c.success.Add(1)
	c.inferences.Add(uint64(rows))
	add(&c.request, t.Done.Sub(enqueued))
	add(&c.queue, waited)
	add(&c.input, t.Input())
	add(&c.infer, t.Infer())
	add(&c.output, t.Output())
	c.own.queueSeconds.Observe(waited.Seconds())
}

func add(sum *atomic.Int64, d time.Duration) { sum.Add(int64(max(d, 0))) }

// failureOf sorts a reason into Triton's four.
func failureOf(reason errs.Reason) failure {
	switch reason {
	case errs.Cancelled:
		return canceled
	case errs.MaxQueueSize, errs.QueueTimeout, errs.QueueFull, errs.DeadlineQueue, errs.DeadlineUnmeetable,
		errs.Shed, errs.QuotaExceeded:
		return rejected
	}
	return other
}
