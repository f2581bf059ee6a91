package explain

import (
	"context"
	"encoding/json"
	"time"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// askWait is how long others are waited for: those who know nothing do not say so.
const askWait = 300 * time.Millisecond

// maxExplaining is how many requests are explained at a time. One that nobody knows is searched for in
// all gateways and takes askWait, so this bounds how many of these a client can ask for in a second.
const maxExplaining = 16

// Explain tells what became of a request: one of this gateway's or, by the store, of
// another's, with what schedulers have decided about it. It refuses at once while as many are explained as may be.
func (r *Requests) Explain(ctx context.Context, store *bus.Bus, q infer.ExplainQuestion) (*infer.Explanation, error) {
	select {
	case r.explaining <- struct{}{}:
		defer func() { <-r.explaining }()
	default:
		return nil, errs.New(errs.QueueFull, "%d requests are being explained, which is the maximum: ask again", maxExplaining)
	}
	e, unknown := r.Find(q)
	if unknown != nil {
		if err := ask(ctx, store, bus.AskGateways, q, func(other *infer.Explanation) bool { e = other; return true }); err != nil {
			return nil, err
		}
	}
	if e == nil {
		return nil, unknown
	}
	q.Request = e.RequestID
	// Without NATS a gateway tells what it knows itself.
	_ = ask(ctx, store, bus.AskSchedulers, q, func(list *[]infer.ExplainedDecision) bool {
		e.Decisions = append(e.Decisions, *list...)
		return e.Batch != nil && hasBatch(*list, e)
	})
	return e, nil
}

// hasBatch reports whether decisions are about the model itself, of which one pool knows
// all, and not about a step of it.
func hasBatch(list []infer.ExplainedDecision, e *infer.Explanation) bool {
	for i := range list {
		if list[i].Batch == e.Batch.ID && list[i].Step == 0 {
			return true
		}
	}
	return false
}

// ask puts a question to all who may know, until one has said enough.
func ask[T any](ctx context.Context, store *bus.Bus, s bus.Subject, q infer.ExplainQuestion, take func(*T) (enough bool)) error {
	question, err := json.Marshal(q)
	if err != nil {
		return errs.Wrap(errs.Bug, err, "the question cannot be written")
	}
	return store.Ask(ctx, s, question, askWait, func(reply []byte) bool {
		var answer T
		return json.Unmarshal(reply, &answer) == nil && take(&answer)
	})
}

// Answer answers another gateway's question; with nil where this one knows nothing.
func (r *Requests) Answer(question []byte) []byte {
	var q infer.ExplainQuestion
	if json.Unmarshal(question, &q) != nil {
		return nil
	}
	e, err := r.Find(q)
	if err != nil {
		return nil
	}
	answer, _ := json.Marshal(e) // numbers and texts
	return answer
}
