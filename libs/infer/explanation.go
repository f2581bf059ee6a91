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
