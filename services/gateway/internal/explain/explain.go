// Package explain remembers what happened to recent requests, to report where the time of a request went, in
// which batch it ran, or why it was refused.
package explain

import (
	"cmp"
	"strings"
	"sync"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/ring"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
)

// Requests are the recent requests of a gateway. It is safe for concurrent use.
type Requests struct {
	wall       func(mono.Time) time.Time
	most       int           // number of requests that are remembered
	explaining chan struct{} // one for each request that is being explained

	mu     sync.Mutex
	recent ring.Ring[record] // guarded by mu
}

// record is what is remembered of a request. Its texts are short copies, because an outcome refers to memory of
// its call, whose size the client chose.
type record struct {
	path.Outcome        // without the error
	message      string // of the error, as the client saw it
	retryAfter   time.Duration
}

// The maximum number of bytes that are remembered of an id and of another text.
const (
	maxID   = 256
	maxText = 1024
)

// copied returns a copy of at most most bytes of a text.
func copied(text string, most int) string { return strings.Clone(text[:min(len(text), most)]) }

// New returns a memory of most requests; 0 remembers none. wall converts a time of requests to wall-clock time.
func New(most int, wall func(mono.Time) time.Time) *Requests {
	return &Requests{recent: ring.New[record](most), wall: wall, most: most, explaining: make(chan struct{}, maxExplaining)}
}

// Add remembers a request that has ended, replacing the oldest if necessary.
func (r *Requests) Add(o *path.Outcome) {
	if r.most == 0 {
		return
	}
	e := record{Outcome: *o}
	e.ClientID, e.Tenant, e.Err = copied(o.ClientID, maxID), copied(o.Tenant, maxID), nil
	if err := errs.Visible(o.Err); err != nil {
		e.message, e.retryAfter = copied(err.Msg, maxText), err.RetryAfter
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recent.Add(e)
}

// pieceSize is how many requests are compared while other requests that end must wait.
const pieceSize = 256

// Find explains the newest request with an id, which is the server's or the client's own. Only the remembered
// prefix of a longer id is compared.
func (r *Requests) Find(q infer.ExplainQuestion) (*infer.Explanation, error) {
	work, _ := infer.ParseRequestID(q.Request)
	client := q.Request[:min(len(q.Request), maxID)]
	before := ^uint64(0)
	for more := true; more; {
		var found *record
		if found, before, more = r.findIn(before, func(o *record) bool {
			return (q.Every || o.Tenant == q.Tenant[:min(len(q.Tenant), maxID)]) && (o.Request == work || o.ClientID == client)
		}); found != nil {
			return r.explain(found), nil
		}
	}
	return nil, errs.New(errs.RequestUnknown, "no request %q is among the last %d of each gateway that the caller may see", q.Request, r.most)
}

// findIn searches a piece of the requests before a position. It returns where the next piece starts, and
// whether there is one.
func (r *Requests) findIn(before uint64, is func(*record) bool) (found *record, next uint64, more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	left := pieceSize
	for at, o := range r.recent.Before(before) {
		if left == 0 {
			return nil, next, true
		}
		left--
		if next = at; is(o) {
			o := *o
			return &o, 0, false
		}
	}
	return nil, 0, false
}

func (r *Requests) explain(o *record) *infer.Explanation {
	e := &infer.Explanation{
		RequestID: o.Request.String(), ID: o.ClientID, Protocol: o.Protocol, Model: o.Model.String(), Version: o.Version, Tenant: o.Tenant, Class: o.Class, Band: o.Band,
		Received: r.wall(o.Received).UTC(), Outcome: cmp.Or(string(o.Reason), "good"), Total: o.Finished.Sub(o.Received).Seconds(),
		Responses: o.Responses, Cached: o.Cached, PredictedCost: o.Predicted, Cost: o.Execution.Cost.Seconds() * 1000,
	}
	e.Message, e.RetryAfter = o.message, o.retryAfter.Seconds()
	if o.Deadline != 0 {
		e.Deadline = o.Deadline.Sub(o.Received).Seconds()
		if o.Reason == "" && o.Ended > o.Deadline {
			e.Outcome = "late"
		}
	}
	e.Spent = spent(&o.Outcome)
	if x := &o.Execution; x.BatchSize > 0 {
		e.Batch = &infer.ExplainedBatch{ID: x.Batch.String(), Worker: x.Instance.Worker, Instance: x.Instance.Slot, Size: x.BatchSize, Own: o.BatchSize}
	}
	return e
}

// spent breaks down a request's time.
func spent(o *path.Outcome) (spans []infer.Span) {
	add := func(what string, d time.Duration) {
		if d > 0 {
			spans = append(spans, infer.Span{What: what, Seconds: d.Seconds()})
		}
	}
	x := &o.Execution
	served := o.Ended.Sub(o.Started)
	add("receive, decode and check", o.Started.Sub(o.Received))
	add("wait in the scheduler's queue and for the instance", x.Waited)
	add("gather the inputs of the batch", x.Input)
	add("run the model", x.Ran)
	if known := x.Waited + x.Input + x.Ran; known > 0 {
		add("go between gateway, scheduler and worker", served-known)
	} else {
		add("be served", served)
	}
	add("encode and send the response", o.Finished.Sub(o.Ended))
	return spans
}
