package infer

import "time"

// Explanation is what became of a request. Times are in seconds.
type Explanation struct {
	RequestID string    `json:"request_id"`
	ID        string    `json:"id,omitempty"` // the client's
	Protocol  string    `json:"protocol"`
	Model     string    `json:"model"`
	Version   int64     `json:"version,omitempty"`
	Tenant    string    `json:"tenant,omitempty"`
	Class     string    `json:"class,omitempty"`
	Band      string    `json:"band,omitempty"`
	Received  time.Time `json:"received"`
	// Outcome is good, late, or the reason of the refusal or failure.
	Outcome    string  `json:"outcome"`
	Message    string  `json:"message,omitempty"`
	RetryAfter float64 `json:"retry_after_seconds,omitempty"`
	// Deadline is how long after its arrival the request was to be done; 0 is no deadline.
	Deadline  float64 `json:"deadline_seconds,omitempty"`
	Total     float64 `json:"total_seconds"`
	Responses int     `json:"responses"`
	Cached    bool    `json:"cached,omitempty"`
	// Spent is where the time went, in the order in which it did.
	Spent []Span `json:"spent"`
	// Batch is the execution that has given the response; nil where none has.
	Batch *ExplainedBatch `json:"batch,omitempty"`
	// Decisions are what schedulers have decided about it, one for each step and try.
	Decisions []ExplainedDecision `json:"decisions,omitempty"`
	// PredictedCost and Cost are in cost units.
	PredictedCost float64 `json:"predicted_cost_units,omitempty"`
	Cost          float64 `json:"cost_units,omitempty"`
}

// Span is a part of a request's time.
type Span struct {
	What    string  `json:"what"`
	Seconds float64 `json:"seconds"`
}

// ExplainedBatch is an execution.
type ExplainedBatch struct {
	ID       string `json:"id"`
	Worker   uint64 `json:"worker"`
	Instance uint32 `json:"instance"`
	Size     int64  `json:"size"`
	Own      int64  `json:"own_size"`
}

// ExplainedDecision is how a request, or a step of an ensemble, left a scheduler's queue.
type ExplainedDecision struct {
	Pool      string `json:"pool"`
	Model     string `json:"model"`
	Version   int64  `json:"version"`
	Step      uint32 `json:"step,omitempty"`
	Iteration uint32 `json:"iteration,omitempty"`
	// Queued is how long it had been there.
	Queued float64 `json:"queued_seconds"`
	// Predicted is after how long it was expected to be done, as it came; 0 where it had
	// no deadline.
	Predicted float64 `json:"predicted_seconds,omitempty"`
	// What is dispatched, or why it was refused or failed, of which Reason is the word.
	What   string `json:"what"`
	Reason string `json:"reason,omitempty"`
	// Waited is for how long an instance was free meanwhile, and WaitedFor why it waited.
	Waited    float64 `json:"waited_seconds,omitempty"`
	WaitedFor string  `json:"waited_for,omitempty"`
	// Batch is what it was dispatched in, with Requests of together Size rows.
	Batch    string `json:"batch,omitempty"`
	Requests int    `json:"requests,omitempty"`
	Size     int64  `json:"size,omitempty"`
	Worker   uint64 `json:"worker,omitempty"`
	Instance uint32 `json:"instance,omitempty"`
}

// ExplainQuestion asks what became of a request: in JSON, of gateways by bus.AskGateways,
// who answer with an [Explanation], and of schedulers by bus.AskSchedulers, who answer
// with a list of [ExplainedDecision].
type ExplainQuestion struct {
	// Request is the server's id, or for gateways also the client's own.
	Request string `json:"request"`
	// Tenant is whose requests may be told of; Every is all.
	Tenant string `json:"tenant,omitempty"`
	Every  bool   `json:"every,omitempty"`
}
