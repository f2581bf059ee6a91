package infer

import "time"

// Statistics are the counts of one model version since it was loaded. Of one
// value the counts fit together: those of Queue and of successes are equal, and
// so are those of the three compute phases, which leave out cache hits.
type Statistics struct {
	// LastInference is the wall time of the last execution's end; zero if there
	// was none.
	LastInference time.Time
	// Inferences are the batch sizes of successful requests, Executions the runs of
	// the model; neither counts cache hits.
	Inferences, Executions uint64
	// Success and Fail are whole requests, from their arrival at the scheduler
	// to their end.
	Success, Fail Tally
	// Queue, Input, Infer and Output are the phases of the successful requests.
	// Each request of a batch counts the batch's time in full.
	Queue, Input, Infer, Output Tally
	CacheHit, CacheMiss         Tally
	// Batches are ascending by size.
	Batches []BatchStatistics
	// Responses are those of a decoupled model by their index within their request.
	Responses []ResponseStatistics
}

// ResponseStatistics are the responses of one index. Each took the time from the one
// before it.
type ResponseStatistics struct {
	// Infer and Output are the phases of those that had outputs, which Success counts.
	Infer, Output, Success Tally
	// Fail and Cancel ended a request by an error, Empty without outputs.
	Fail, Empty, Cancel Tally
}

// BatchStatistics are the executions of one batch size.
type BatchStatistics struct {
	// Size is the execution batch size.
	Size                 int64
	Input, Infer, Output Tally
}

// Tally counts events and sums up how long they took.
type Tally struct {
	Count uint64
	Time  time.Duration
}

// Add counts one event. A negative time, from clocks of two processes, is
// none.
func (t *Tally) Add(d time.Duration) {
	t.Count++
	t.Time += max(d, 0)
}

// Queue counts the waiting and running requests of a loaded content.
type Queue struct {
	Model ModelRef
	// Waiting and Running are requests.
	Waiting, Running int
	// Oldest is the age of the oldest waiting request; 0 if there is none.
	Oldest time.Duration
}

// EnsembleEnd is the end of one request for an ensemble, whose steps count for
// themselves.
type EnsembleEnd struct {
	Model  ModelRef
	Failed bool
	// Time is from the request's arrival to its last response.
	Time time.Duration
	// BatchSize is the request's.
	BatchSize int64
	// Input, Infer and Output are the sums of the steps' phases.
	Input, Infer, Output time.Duration
}

// CacheUse is what the response cache did for one request.
type CacheUse struct {
	Model ModelRef
	// Hit says that the response was cached. The request is then a success without waiting or
	// execution.
	Hit bool
	// Time is that of the lookup, and of a miss also that of the insertion.
	Time time.Duration
}
