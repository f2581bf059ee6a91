// Package stats counts the outcomes of requests per model version, and exports the counts as Prometheus metrics:
// Triton's nv_inference_* families with their names, labels and units, and Nereid's own.
package stats

import (
	"cmp"
	"maps"
	"slices"
	"sync"
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

// String returns Triton's value of the reason label.
func (f failure) String() string { return [...]string{"REJECTED", "CANCELED", "BACKEND", "OTHER"}[f] }

// Counters are the counts of one model version. They are safe for concurrent use.
type Counters struct {
	*inFlight
	slots     uint64 // the most rows that a batch can have
	decoupled bool
	stages    stages
	own       ownSeries
	times     *distributions

	mu      sync.Mutex
	totals  totals                           // guarded by mu
	batches map[int64]*infer.BatchStatistics // by size; guarded by mu
	// responses are the counts of a decoupled model's responses by index; guarded by mu.
	responses []infer.ResponseStatistics
}

// inFlight counts the requests that a version currently has. They stay in flight when the version is unloaded and
// loaded again, and later Counters count their end.
type inFlight struct{ pending, running atomic.Int64 }

func (f *inFlight) any() bool { return f.pending.Load() != 0 || f.running.Load() != 0 }

// totals count what a version has done since it was loaded.
type totals struct {
	failed     [failures]uint64
	inferences uint64
	executions uint64
	rows       uint64    // of batches that ran
	slots      uint64    // the rows that those batches could have had
	last       mono.Time // end of the last execution; 0 is none
	fail       infer.Tally
	// Of successful requests; the model's phases exclude cache hits.
	request, queue, input, infer, output infer.Tally
	hit, miss                            infer.Tally // of the response cache
}

// Submitted counts a request that has arrived.
func (c *Counters) Submitted() { c.pending.Add(1) }

// Refused counts a request that ended without having run, the given time after its arrival.
func (c *Counters) Refused(reason errs.Reason, after time.Duration) {
	c.fail(failureOf(reason), after)
	c.own.refused(reason)
}

// Started counts submitted requests that no longer wait.
func (c *Counters) Started(requests int) { c.pending.Add(int64(-requests)) }

// Runs counts requests that have been dispatched or, with a negative number, are done.
func (c *Counters) Runs(requests int) { c.running.Add(int64(requests)) }

// CacheUsed counts the use of the response cache for a request. A hit is a successful request that has not waited;
// the outcome of a miss is counted separately.
func (c *Counters) CacheUsed(hit bool, took time.Duration) {
	c.mu.Lock()
	if hit {
		c.totals.hit.Add(took)
		c.totals.request.Add(took)
		c.totals.queue.Add(0)
	} else {
		c.totals.miss.Add(took)
	}
	c.mu.Unlock()
	c.times.cacheUsed(hit, took)
}

// EnsembleEnded counts a request for an ensemble, whose phases are the sums of its steps' phases. As in Triton, the
// request has not waited, even if its steps have, and the reason of a failure counts with the step.
func (c *Counters) EnsembleEnded(e *infer.EnsembleEnd, at mono.Time) {
	if e.Failed {
		c.fail(other, e.Time)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &c.totals
	t.inferences += uint64(e.BatchSize)
	t.executions++
	t.last = max(t.last, at)
	t.request.Add(e.Time)
	t.queue.Add(0)
	t.input.Add(e.Input)
	t.infer.Add(e.Infer)
	t.output.Add(e.Output)
	c.batchLocked(e.BatchSize, e.Input, e.Infer, e.Output)
}

// Lost counts a request whose worker was lost the given time after the request's arrival.
func (c *Counters) Lost(after time.Duration) { c.fail(other, after) }

func (c *Counters) fail(f failure, after time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.totals.fails(f, after)
}

// Served is one request of a completed batch.
type Served struct {
	Outcome infer.Outcome
	Rows    int64
	// Again says that this was one iteration, but not the last. Responses are counted with the last one.
	Again bool
	// Enqueued is when the request entered the scheduler.
	Enqueued mono.Time
	// Queued is when it started to wait for this iteration; 0 means Enqueued.
	Queued mono.Time
	// Dispatched is when its batch left the queue.
	Dispatched mono.Time
	// FirstResponse is when the first of several responses was sent; 0 if the only one was sent when the batch was
	// done.
	FirstResponse mono.Time
	// Responses are those of a decoupled model, if there were several or none.
	Responses infer.UnitResponses
}

func (r *Served) queued() mono.Time { return cmp.Or(r.Queued, r.Enqueued) }

// Completed counts a batch and its requests atomically: a concurrent reader of the counts sees all of them or none.
func (c *Counters) Completed(done *infer.InstanceFree, requests []Served) {
	c.add(done, requests)
	if done.Executions > 0 {
		c.own.batchRows.Observe(float64(done.BatchSize))
	}
	c.stages.observe(done, requests)
	c.times.observe(done, requests)
}

func (c *Counters) add(done *infer.InstanceFree, requests []Served) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if done.Executions > 0 {
		c.executed(done)
	}
	for _, r := range requests {
		if c.decoupled && r.Outcome != infer.Rejected && !r.Again {
			c.respondedLocked(&r, &done.Timing)
		}
		if r.Outcome == infer.Succeeded {
			c.totals.succeeds(r, &done.Timing)
			continue
		}
		c.totals.fails(failureOfOutcome(r.Outcome), done.Timing.Done.Sub(r.Enqueued))
	}
}

// respondedLocked counts the responses to a request. A request without reported times had one response, which took as
// long as its batch.
func (c *Counters) respondedLocked(r *Served, timing *infer.Timing) {
	times := r.Responses.Times
	if len(times) == 0 {
		times = []time.Duration{timing.Infer()}
	}
	for i, d := range times {
		if i == len(c.responses) {
			c.responses = append(c.responses, infer.ResponseStatistics{})
		}
		s := &c.responses[i]
		switch last := i == len(times)-1 && i < infer.MaxResponseTimes-1; {
		case last && r.Outcome == infer.Canceled:
			s.Cancel.Add(d)
		case last && r.Outcome == infer.Failed:
			s.Fail.Add(d)
		case last && r.Responses.Empty:
			s.Empty.Add(d)
		default:
			s.Infer.Add(d)
			s.Output.Add(0) // a backend sends only complete responses
			s.Success.Add(d)
		}
	}
}

// executed counts a batch under its size. The caller holds mu.
func (c *Counters) executed(done *infer.InstanceFree) {
	c.totals.executions += uint64(done.Executions)
	c.totals.rows += uint64(done.BatchSize)
	c.totals.slots += c.slots
	c.totals.last = max(c.totals.last, done.Timing.Done)
	c.batchLocked(done.BatchSize, done.Timing.Input(), done.Timing.Infer(), done.Timing.Output())
}

// batchLocked counts an execution under its batch size.
func (c *Counters) batchLocked(size int64, input, inferred, output time.Duration) {
	of := c.batches[size]
	if of == nil {
		of = &infer.BatchStatistics{Size: size}
		c.batches[size] = of
	}
	of.Input.Add(input)
	of.Infer.Add(inferred)
	of.Output.Add(output)
}

func (t *totals) succeeds(r Served, timing *infer.Timing) {
	t.inferences += uint64(r.Rows)
	t.request.Add(timing.Done.Sub(r.Enqueued))
	t.queue.Add(timing.Start.Sub(r.queued()))
	t.input.Add(timing.Input())
	t.infer.Add(timing.Infer())
	t.output.Add(timing.Output())
}

func (t *totals) fails(f failure, after time.Duration) {
	t.failed[f]++
	t.fail.Add(after)
}

// snapshot returns a consistent copy of the totals.
func (c *Counters) snapshot() totals {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.totals
}

// Statistics returns a consistent copy of the counts. wall converts the time of the last execution.
func (c *Counters) Statistics(wall func(mono.Time) time.Time) infer.Statistics {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &c.totals
	s := infer.Statistics{
		Inferences: t.inferences, Executions: t.executions,
		Success: t.request, Fail: t.fail, Queue: t.queue, Input: t.input, Infer: t.infer, Output: t.output,
		CacheHit: t.hit, CacheMiss: t.miss,
	}
	if t.last != 0 {
		s.LastInference = wall(t.last)
	}
	for _, size := range slices.Sorted(maps.Keys(c.batches)) {
		s.Batches = append(s.Batches, *c.batches[size])
	}
	s.Responses = slices.Clone(c.responses)
	return s
}

func failureOfOutcome(o infer.Outcome) failure {
	switch o {
	case infer.Canceled:
		return canceled
	case infer.Rejected:
		return rejected
	}
	return backend
}

// failureOf maps a reason to one of Triton's four.
func failureOf(reason errs.Reason) failure {
	switch reason {
	case errs.Canceled:
		return canceled
	case errs.MaxQueueSize, errs.QueueTimeout, errs.QueueFull, errs.DeadlineQueue, errs.DeadlineUnmeetable, errs.DeadlineTooShort,
		errs.SequenceTimeout, errs.Shed, errs.QuotaExceeded:
		return rejected
	}
	return other
}
