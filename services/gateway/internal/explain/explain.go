// Package explain remembers what became of recent requests, to tell where the time of
// one went, in which batch it ran, or why it was refused.
package explain

import (
	"cmp"
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
	wall func(mono.Time) time.Time

	mu     sync.Mutex
	recent ring.Ring[path.Outcome] // guarded by mu
}

// New returns a memory of so many requests; 0 remembers none. Wall tells when a time of
// requests was.
func New(most int, wall func(mono.Time) time.Time) *Requests {
	return &Requests{recent: ring.New[path.Outcome](most), wall: wall}
}

// Add remembers a request that has ended, in the place of the oldest.
func (r *Requests) Add(o *path.Outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recent.Add(*o)
}

// Find explains the newest request of an id, which is the server's or the client's own.
func (r *Requests) Find(q infer.ExplainQuestion) (*infer.Explanation, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for o := range r.recent.Backward() {
		if (q.Every || o.Tenant == q.Tenant) && (o.ClientID == q.Request || o.Request.String() == q.Request) {
			return r.explain(o), nil
		}
	}
	return nil, errs.New(errs.RequestUnknown, "no request %q is among the last %d of each gateway that the caller may see", q.Request, r.recent.Size())
}

func (r *Requests) explain(o *path.Outcome) *infer.Explanation {
	e := &infer.Explanation{
		RequestID: o.Request.String(), ID: o.ClientID, Protocol: o.Protocol, Model: o.Model.String(), Version: o.Version, Tenant: o.Tenant, Class: o.Class, Band: o.Band,
		Received: r.wall(o.Received).UTC(), Outcome: cmp.Or(string(o.Reason), "good"), Total: o.Finished.Sub(o.Received).Seconds(),
		Responses: o.Responses, Cached: o.Cached, PredictedCost: o.Predicted, Cost: o.Execution.Cost.Seconds() * 1000,
	}
	if err := errs.Visible(o.Err); err != nil {
		e.Message, e.RetryAfter = err.Msg, err.RetryAfter.Seconds()
	}
	if o.Deadline != 0 {
		e.Deadline = o.Deadline.Sub(o.Received).Seconds()
		if o.Reason == "" && o.Ended > o.Deadline {
			e.Outcome = "late"
		}
	}
	e.Spent = spent(o)
	if x := &o.Execution; x.BatchSize > 0 {
		e.Batch = &infer.ExplainedBatch{ID: x.Batch.String(), Worker: x.Instance.Worker, Instance: x.Instance.Slot, Size: x.BatchSize, Own: o.BatchSize}
	}
	return e
}

// spent splits a request's time.
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
