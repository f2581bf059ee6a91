package core

import (
	"context"
	"errors"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/gateway/internal/pending"
)

// NewRequest starts a request for v: identity, model and time of arrival.
func (g *Gateway) NewRequest(v *Version) *infer.Request {
	return &infer.Request{
		Work:     infer.Work{Request: g.pending.NextID(), Attempt: 1, Revision: g.Snapshot().Revision},
		Model:    v.Ref,
		Pool:     v.Pool,
		Received: g.clock.Now(),
	}
}

// Infer checks r against v, has it executed and returns its one response,
// which the caller releases, and the version by which it was answered. It takes
// r over in every case. When ctx ends first the request is cancelled wherever
// it is. A request whose content has gone before it was queued is submitted
// once more, for what has taken its place: the version is then another than v.
func (g *Gateway) Infer(ctx context.Context, v *Version, r *infer.Request) (*infer.Response, *Version, error) {
	if err := check(v, r); err != nil {
		r.Release()
		return nil, v, err
	}
	response, returned, err := g.attempt(ctx, v, r)
	if returned == nil {
		return response, v, err
	}
	next := g.reroute(v, returned)
	if next == nil {
		returned.Release()
		return nil, v, err
	}
	response, returned, err = g.attempt(ctx, next, returned)
	if returned != nil {
		returned.Release()
	}
	return response, next, err
}

// reroute turns a request for a content of v's version to the one that serves
// now, and returns that one; nil if there is none that takes it. The steps of a
// sequence belong together and stay.
func (g *Gateway) reroute(v *Version, r *infer.Request) *Version {
	snapshot := g.Snapshot()
	next, err := snapshot.current(v.Ref)
	if err != nil || next.Ref == r.Model && next.Pool == r.Pool || r.Sequence != (infer.Sequence{}) || next.Config.Decoupled || check(next, r) != nil {
		return nil
	}
	r.Model, r.Pool = next.Ref, next.Pool
	r.Work = infer.Work{Request: r.Work.Request, Attempt: r.Work.Attempt + 1, Revision: snapshot.Revision}
	return next
}

// attempt submits r to v and waits for its answer. The request is returned if
// the scheduler gives it back.
func (g *Gateway) attempt(ctx context.Context, v *Version, r *infer.Request) (*infer.Response, *infer.Request, error) {
	// The request is the scheduler's after Submit: keep what is needed.
	work := r.Work
	waiter, _ := g.waiters.Get().(*pending.Unary)
	turn := g.open(work, v, waiter)
	if err := g.submit(r); err != nil {
		r.Release()
		g.pending.Finish(infer.Fail(work, err))
	}
	response, answered, err := waiter.Wait(ctx)
	if !answered {
		response, err = g.abandon(ctx, work, waiter)
	}
	var returned *infer.Request
	if err != nil {
		response, returned = nil, waiter.Returned()
	}
	if turn != nil {
		if response != nil {
			response.Turn = turn
		} else {
			turn()
		}
	}
	waiter.Reset()
	g.waiters.Put(waiter)
	return response, returned, err
}

// open enters a request into the pending table, and returns what passes its
// turn where answers keep the order of requests; nil elsewhere.
func (g *Gateway) open(w infer.Work, v *Version, next infer.Responder) (turn func()) {
	if b := v.Config.Batching; b != nil && b.PreserveOrdering {
		return g.pending.OpenInOrder(w, v.Ref, next).Pass
	}
	g.pending.Open(w, next)
	return nil
}

// submit hands the request over unless the gateway drains. The request is in
// the pending table already: a Drain that begins now waits for it, and one that
// began before is seen here.
func (g *Gateway) submit(r *infer.Request) error {
	if g.draining.Load() {
		return errs.New(errs.Draining, "Server is stopping, scheduler for model has stopped accepting new inference requests").WithModel(r.Model.Name)
	}
	return g.dispatcher.Submit(r)
}

// abandon ends a request whose client is gone or out of time. The final
// answer may have come at the same moment; then that one counts.
func (g *Gateway) abandon(ctx context.Context, w infer.Work, waiter *pending.Unary) (*infer.Response, error) {
	if g.pending.Finish(infer.Fail(w, abandoned(ctx))) {
		g.dispatcher.Cancel(w.Request)
	}
	response, _, err := waiter.Wait(context.WithoutCancel(ctx))
	return response, err
}

func abandoned(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return errs.Wrap(errs.DeadlineCompute, ctx.Err(), "the deadline passed before the answer was there")
	}
	return errs.Wrap(errs.Cancelled, ctx.Err(), "")
}
