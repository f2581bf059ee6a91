package explain

import (
	"context"
	"encoding/json"
	"time"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// askWait is how long to wait for other processes: those that know nothing do not answer.
const askWait = 300 * time.Millisecond

// maxExplaining is the number of concurrent explanations. A request that nobody knows is looked up in all
// gateways and takes askWait, so this bounds how many of these a client can cause per second.
const maxExplaining = 16

// Explain explains what happened to a request of this gateway or, through the store, of another one, including
// the schedulers' decisions about it. It refuses at once if the maximum number of explanations is in progress.
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
	// Without NATS a gateway reports only what it knows itself.
	_ = ask(ctx, store, bus.AskSchedulers, q, func(list *[]infer.ExplainedDecision) bool {
		e.Decisions = append(e.Decisions, *list...)
		return e.Batch != nil && hasBatch(*list, e)
	})
	return e, nil
}

// hasBatch reports whether decisions concern the model itself, which a single pool knows completely, and not a
// step of it.
func hasBatch(list []infer.ExplainedDecision, e *infer.Explanation) bool {
	for i := range list {
		if list[i].Batch == e.Batch.ID && list[i].Step == 0 {
			return true
		}
	}
	return false
}

// ask sends a question to all processes that may know the answer, until one has answered enough.
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

// Answer answers another gateway's question; nil means that this one knows nothing.
func (r *Requests) Answer(question []byte) []byte {
	var q infer.ExplainQuestion
	if json.Unmarshal(question, &q) != nil {
		return nil
	}
	e, err := r.Find(q)
	if err != nil {
		return nil
	}
	answer, _ := json.Marshal(e) // it contains only numbers and texts
	return answer
}
