package core

import (
	"context"
	"sync/atomic"

	"github.com/nereid-serving/nereid/libs/infer"
)

// search looks for the response to an admitted request in a goroutine of its own, which
// has the request meanwhile.
type search struct {
	cancel    context.CancelFunc
	done      chan struct{}
	submitted atomic.Bool // the request went to its scheduler
}

// DispatchUnless dispatches an admitted request, which it takes over in every case,
// unless find returns its response. It returns at once. find may wait, and returns soon
// after the end of its context, which ends with ctx and with the request.
func (x *Execution) DispatchUnless(ctx context.Context, find func(context.Context) *infer.Response, r *infer.Request) {
	if x.version.Composed != nil { // whose steps the reader of the responses submits
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

// end ends a search, if there is one, and waits for it: the request has its response or
// is dispatched then, or will never be.
func (s *search) end() {
	if s != nil {
		s.cancel()
		<-s.done
	}
}
