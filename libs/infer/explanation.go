package infer

import "time"

// Explanation describes the outcome of a request. Times are in seconds.
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
	// Deadline is relative to the arrival of the request; 0 is no deadline.
	Deadline  float64 `json:"deadline_seconds,omitempty"`
	Total     float64 `json:"total_seconds"`
	Responses int     `json:"responses"`
	Cached    bool    `json:"cached,omitempty"`
	// Spent has the phases of the request in order.
	Spent []Span `json:"spent"`
	// Batch is the execution that gave the response; nil if there was none.
	Batch *ExplainedBatch `json:"batch,omitempty"`
	// Decisions are the schedulers' decisions about it, one for each step and attempt.
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
	// Predicted is the time to completion predicted on arrival; 0 if it had no deadline.
	Predicted float64 `json:"predicted_seconds,omitempty"`
	// What is dispatched, or why it was refused or failed; Reason is the reason.
	What   string `json:"what"`
	Reason string `json:"reason,omitempty"`
	// Waited is how long it waited although an instance was free, and WaitedFor why.
	Waited    float64 `json:"waited_seconds,omitempty"`
	WaitedFor string  `json:"waited_for,omitempty"`
	// Batch is the batch in which it was dispatched, with Requests and Size rows in total.
	Batch    string `json:"batch,omitempty"`
	Requests int    `json:"requests,omitempty"`
	Size     int64  `json:"size,omitempty"`
	Worker   uint64 `json:"worker,omitempty"`
	Instance uint32 `json:"instance,omitempty"`
}

// ExplainQuestion asks for the outcome of a request, in JSON. Gateways answer it on
// bus.AskGateways with an [Explanation], schedulers on bus.AskSchedulers with a list of
// [ExplainedDecision].
type ExplainQuestion struct {
	// Request is the server's id, or for gateways also the client's own.
	Request string `json:"request"`
	// Tenant is the tenant whose requests may be explained; Every means all.
	Tenant string `json:"tenant,omitempty"`
	Every  bool   `json:"every,omitempty"`
}
