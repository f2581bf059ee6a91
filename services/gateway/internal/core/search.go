package core

import (
	"context"
	"sync/atomic"

	"github.com/nereid-serving/nereid/libs/infer"
)

// search looks for the response to an admitted request in a separate goroutine, which owns the request
// meanwhile.
type search struct {
	cancel    context.CancelFunc
	done      chan struct{}
	submitted atomic.Bool // the request was submitted to its scheduler
}

// DispatchUnless dispatches an admitted request unless find returns its response. It always takes ownership of
// the request and returns at once. find may wait, but must return soon after its context ends, which ends with
// ctx and with the request.
func (x *Execution) DispatchUnless(ctx context.Context, find func(context.Context) *infer.Response, r *infer.Request) {
	if x.version.Composed != nil { // the reader of the responses submits an ensemble's steps
		x.compose(r).find = find
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &search{cancel: cancel, done: make(chan struct{})}
	x.search = s
	g, work := x.gateway, x.work
	go func() {
		defer close(s.done)
		p := find(ctx)
		switch {
		case p != nil:
			r.Release()
			p.Work = work
			g.requests.Respond(p)
		case ctx.Err() != nil: // nobody waits for it
			r.Release()
		default:
			s.submitted.Store(true)
			g.submit(r)
		}
	}()
}

// end stops a search, if there is one, and waits for it. After that the request has its response, is
// dispatched, or never will be.
func (s *search) end() {
	if s != nil {
		s.cancel()
		<-s.done
	}
}
