package core

import (
	"context"
	"errors"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
	"github.com/nereid-serving/nereid/services/gateway/internal/requests"
)

// Now is the time of requests.
func (g *Gateway) Now() mono.Time { return g.clock.Now() }

// NextID returns the identity of another request.
func (g *Gateway) NextID() infer.RequestID { return g.requests.NextID() }

// NewRequest starts a request for v: identity, model and time of arrival.
func (g *Gateway) NewRequest(v *Version) *infer.Request {
	return &infer.Request{
		Work:     infer.Work{Request: g.requests.NextID(), Attempt: 1, Revision: g.Snapshot().Revision},
		Model:    v.Ref,
		Pool:     v.Pool,
		Received: g.clock.Now(),
	}
}

// Execution is one request on its way through scheduler and workers:
// [Execution.Admit] and [Execution.Dispatch] begin it, [Execution.Next] gives its
// responses and [Execution.Close] ends it. One goroutine at a time uses it. It
// may be used again after Close.
type Execution struct {
	// Account is charged with the responses that wait. It may be nil, and is set before
	// Admit.
	Account *memory.Account
	// Observe is called with each response as it comes, before it waits. It does not
	// block, does not keep the response, may be nil, and is set before Admit.
	Observe func(*infer.Response)
	// Connected says that the request came on a connection which was open before the gateway
	// began to drain. It is set before Admit.
	Connected bool
	// Responses wait here.
	Responses requests.Responses

	gateway    *Gateway
	version    *Version
	work       infer.Work
	anyVersion bool
	free       func() // the request's slot; nil where responses keep no order
	open       bool   // in the table
	submitted  bool   // to its scheduler, or its steps to theirs
	final      bool   // no other version may take the request: it was rerouted, or a response was read

	report    infer.Execution // of the final response
	abandoned bool            // the request was submitted, and then ended by the gateway

	search      *search      // for a response that is known elsewhere; nil without one
	composition *composition // of an ensemble; nil for other models
}

// Admit enters a checked request into the table, unless the gateway refuses the
// requests of its client: see [Gateway.Drain]. Calls of models are taken until the end,
// since requests in flight wait for them. Until Dispatch the request stays the caller's.
func (x *Execution) Admit(g *Gateway, v *Version, r *infer.Request) error {
	x.gateway, x.anyVersion = g, r.AnyVersion
	x.enter(v, r)
	// A Drain that begins now waits for the request, and one that began before is
	// seen here.
	if phase := g.phase.Load(); r.Parent == (infer.Parent{}) && (phase == refusing || phase == draining && !x.Connected) {
		err := errs.New(errs.Draining, "Server is stopping, scheduler for model has stopped accepting new inference requests").WithModel(v.Ref.Name)
		g.requests.Finish(infer.Fail(x.work, err))
		x.Close()
		return err
	}
	return nil
}

func (x *Execution) enter(v *Version, r *infer.Request) {
	x.version, x.work, x.open = v, r.Work, true
	if x.Responses.Budget = nil; x.Account != nil {
		x.Responses.Budget = x.Account
	}
	x.Responses.Open()
	if b := v.Config.Batching; b != nil && b.PreserveOrdering {
		x.free = x.gateway.requests.OpenInOrder(r.Work, &v.Ref, x.receiver()).Free
		return
	}
	x.gateway.requests.Open(r.Work, &v.Ref, x.receiver())
}

func (x *Execution) receiver() requests.Receiver {
	if x.Observe == nil {
		return &x.Responses
	}
	return observed{&x.Responses, x.Observe}
}

// observed are responses that somebody sees as they come.
type observed struct {
	*requests.Responses
	observe func(*infer.Response)
}

func (o observed) Receive(p *infer.Response) (last bool) {
	o.observe(p)
	return o.Responses.Receive(p)
}

// Dispatch submits an admitted request, which it takes over in every case. A
// refusal comes from Next.
func (x *Execution) Dispatch(r *infer.Request) {
	if x.version.Composed != nil {
		x.compose(r).begin()
		return
	}
	x.submitted = true
	x.gateway.submit(r)
}

// submit hands a request to its scheduler. A refusal is its response.
func (g *Gateway) submit(r *infer.Request) {
	work := r.Work // the request is the scheduler's after Submit
	if err := g.dispatcher.Submit(r); err != nil {
		r.Release()
		g.requests.Finish(infer.Fail(work, err))
	}
}

// Complete ends an admitted request with a response that is known, which it takes
// over. The request has not been dispatched.
func (x *Execution) Complete(p *infer.Response) {
	p.Work = x.work
	x.gateway.requests.Respond(p)
}

// Version is the one by which the request is executed: another than it was
// admitted with where it was rerouted.
func (x *Execution) Version() *Version { return x.version }

// Report is where the time of the request went at its worker, once its final response was
// read; of an ensemble it has the cost of all steps alone.
func (x *Execution) Report() *infer.Execution { return &x.report }

// Next returns the next response, which the caller releases, up to the final one,
// or the error that ended the request. When ctx ends first the request is
// canceled wherever it is. A request whose generation has gone before it was
// queued is submitted once more, for what has taken its place.
func (x *Execution) Next(ctx context.Context) (*infer.Response, error) {
	for {
		p := x.next(ctx)
		if p == nil {
			x.search.end()
			// The final response may have come at the same moment; then it counts.
			x.cancel(abandoned(ctx))
			ctx = context.WithoutCancel(ctx)
			continue
		}
		if x.open = !p.Final; p.Final {
			x.ended(p)
		}
		if p.Err == nil {
			x.final = true
			return p, nil
		}
		returned := p.Returned
		p.Returned = nil
		x.Pass()
		if returned == nil {
			return nil, p.Err
		}
		next := x.reroute(returned)
		if next == nil {
			returned.Release()
			return nil, p.Err
		}
		x.final = true
		x.enter(next, returned)
		x.Dispatch(returned)
	}
}

// ended takes the report out of the final response.
func (x *Execution) ended(p *infer.Response) {
	x.report = p.Execution
	x.abandoned = p.Abandoned && (x.submitted || x.search != nil && x.search.submitted.Load())
	if c := x.composition; c != nil {
		c.count(p.Err != nil)
		x.report.Cost, x.abandoned = c.spent.Cost, p.Abandoned && c.started
	}
}

// Ending is what is known of a request when its execution is closed.
type Ending struct {
	infer.Execution
	// Abandoned says that the request was submitted and the gateway has ended it itself, as
	// for a client that has gone: it may have cost more than is reported.
	Abandoned bool
}

// Close ends the request, if that has not happened, and releases the responses
// that were not read.
func (x *Execution) Close() Ending {
	x.search.end()
	if x.open {
		x.cancel(errs.New(errs.Canceled, ""))
		x.drain()
	}
	x.search = nil
	x.Pass()
	if x.composition != nil {
		x.composition.close()
		x.composition = nil
	}
	end := Ending{x.report, x.abandoned}
	x.gateway, x.version, x.final, x.submitted, x.report, x.abandoned = nil, nil, false, false, infer.Execution{}, false
	return end
}

// Watch cancels the request when ctx ends while its responses are sent: [Execution.Next]
// does so while they are awaited. It is called when the first response was read; the
// function that it returns ends it.
func (x *Execution) Watch(ctx context.Context) (stop func() bool) {
	g, work := x.gateway, x.work // the execution may be used again by then
	return context.AfterFunc(ctx, func() { g.cancel(work, abandoned(ctx)) })
}

// cancel ends the request with err unless it has its final response.
func (x *Execution) cancel(err error) { x.gateway.cancel(x.work, err) }

func (g *Gateway) cancel(w infer.Work, err error) {
	p := infer.Fail(w, err)
	p.Abandoned = true
	if g.requests.Finish(p) {
		g.dispatcher.Cancel(w.Request)
	}
}

// drain releases the responses up to the final one, which has come.
func (x *Execution) drain() {
	for x.open {
		p := x.Responses.Next(context.Background())
		if x.open = !p.Final; p.Final {
			x.ended(p)
		}
		p.Release()
	}
}

// Pass lets the responses to later requests go, where the model's responses keep
// the order of its requests. It is called after the final response was read, at
// the latest by Close.
func (x *Execution) Pass() {
	if free := x.free; free != nil {
		x.free = nil
		free()
	}
}

// reroute turns a request for a generation of a version to the one that serves
// now, or where any version will do to the latest, and returns that one; nil if
// there is none that takes it, or it was rerouted before. The steps of a sequence
// belong together and stay.
func (x *Execution) reroute(r *infer.Request) *Version {
	if x.final {
		return nil
	}
	v := *x.version
	if x.anyVersion {
		v.Ref.Version = latestVersion
	}
	return x.gateway.Snapshot().successor(&v, r)
}

// successor turns a returned request for a generation of a version to the one that
// serves now, and returns that one; nil if there is none that takes it.
func (s *Snapshot) successor(v *Version, r *infer.Request) *Version {
	next, err := s.current(v.Ref)
	if err != nil || next.Ref == r.Model && next.Pool == r.Pool || r.Sequence != (infer.Sequence{}) ||
		next.Config.Decoupled != v.Config.Decoupled || (next.Composed == nil) != (v.Composed == nil) || Check(next, r) != nil {
		return nil
	}
	r.Model, r.Pool = next.Ref, next.Pool
	r.Work = infer.Work{Request: r.Work.Request, Attempt: r.Work.Attempt + 1, Revision: s.Revision}
	return next
}

func abandoned(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return errs.Wrap(errs.DeadlineCompute, ctx.Err(), "the deadline passed before the answer was there")
	}
	return errs.Wrap(errs.Canceled, ctx.Err(), "")
}
