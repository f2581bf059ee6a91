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

// Now returns the current time on the clock of requests.
func (g *Gateway) Now() mono.Time { return g.clock.Now() }

// NextID returns a new request identity.
func (g *Gateway) NextID() infer.RequestID { return g.requests.NextID() }

// NewRequest starts a request for v: it sets the identity, the model and the time of arrival.
func (g *Gateway) NewRequest(v *Version) *infer.Request {
	return &infer.Request{
		Work:     infer.Work{Request: g.requests.NextID(), Attempt: 1, Revision: g.Snapshot().Revision},
		Model:    v.Ref,
		Pool:     v.Pool,
		Received: g.clock.Now(),
	}
}

// Execution is one request on its way through scheduler and workers: [Execution.Admit] and [Execution.Dispatch]
// start it, [Execution.Next] returns its responses and [Execution.Close] ends it. Only one goroutine may use it
// at a time. It may be reused after Close.
type Execution struct {
	// Account is charged for responses that wait to be read. It may be nil. Set it before Admit.
	Account *memory.Account
	// Observe is called with each response as it arrives. It must not block or retain the response. It may be
	// nil. Set it before Admit.
	Observe func(*infer.Response)
	// Connected says that the request arrived on a connection that was open before the drain started. Set it
	// before Admit.
	Connected bool
	// Responses queues the responses until they are read.
	Responses requests.Responses

	gateway    *Gateway
	version    *Version
	work       infer.Work
	anyVersion bool
	free       func() // frees the request's slot; nil if responses need no order
	open       bool   // it is in the table
	submitted  bool   // to its scheduler, or its steps to theirs
	final      bool   // no rerouting any more: it was rerouted before, or a response was read

	report    infer.Execution // from the final response
	abandoned bool            // the request was submitted and then ended by the gateway

	search      *search      // looks for a response known elsewhere; nil without one
	composition *composition // of an ensemble; nil for other models
}

// Admit enters a checked request in the table, unless the gateway refuses requests of its client: see
// [Gateway.Drain]. Calls by models are accepted until the end, since requests in flight wait for them. The
// caller owns the request until Dispatch.
func (x *Execution) Admit(g *Gateway, v *Version, r *infer.Request) error {
	x.gateway, x.anyVersion = g, r.AnyVersion
	x.enter(v, r)
	// A Drain that starts from here on waits for the request, and one that started before is seen here.
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

// observed passes each response to a function as it arrives.
type observed struct {
	*requests.Responses
	observe func(*infer.Response)
}

func (o observed) Receive(p *infer.Response) (last bool) {
	o.observe(p)
	return o.Responses.Receive(p)
}

// Dispatch submits an admitted request and always takes ownership of it. Next returns a refusal.
func (x *Execution) Dispatch(r *infer.Request) {
	if x.version.Composed != nil {
		x.compose(r).begin()
		return
	}
	x.submitted = true
	x.gateway.submit(r)
}

// submit hands a request to its scheduler. A refusal becomes its response.
func (g *Gateway) submit(r *infer.Request) {
	work := r.Work // the scheduler owns the request after Submit
	if err := g.dispatcher.Submit(r); err != nil {
		r.Release()
		g.requests.Finish(infer.Fail(work, err))
	}
}

// Complete ends an admitted request with a known response, which it takes over. The request must not have been
// dispatched.
func (x *Execution) Complete(p *infer.Response) {
	p.Work = x.work
	x.gateway.requests.Respond(p)
}

// Version returns the version that executes the request. It differs from the admitted one if the request was
// rerouted.
func (x *Execution) Version() *Version { return x.version }

// Report tells how the request's time was spent at its worker, once its final response was read. For an
// ensemble it has only the cost, of all steps.
func (x *Execution) Report() *infer.Execution { return &x.report }

// Next returns the next response, up to the final one, or the error that ended the request. The caller releases
// the response. If ctx ends first, Next cancels the request wherever it is. A request whose generation was
// unloaded before the request was queued is submitted once more, to the successor.
func (x *Execution) Next(ctx context.Context) (*infer.Response, error) {
	for {
		p := x.next(ctx)
		if p == nil {
			x.search.end()
			// The final response may have arrived at the same moment; then it counts.
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

// ended records the report in the final response.
func (x *Execution) ended(p *infer.Response) {
	x.report = p.Execution
	x.abandoned = p.Abandoned && (x.submitted || x.search != nil && x.search.submitted.Load())
	if c := x.composition; c != nil {
		c.count(p.Err != nil)
		x.report.Cost, x.abandoned = c.spent.Cost, p.Abandoned && c.started
	}
}

// Ending is what is known about a request when its execution is closed.
type Ending struct {
	infer.Execution
	// Abandoned says that the request was submitted and then ended by the gateway itself, for example because
	// its client disconnected: it may have cost more than is reported.
	Abandoned bool
}

// Close ends the request if it has not ended yet, and releases the responses that were not read.
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

// Watch cancels the request if ctx ends while its responses are being sent; [Execution.Next] does so while it
// waits for them. Call it after the first response was read, and stop to end it.
func (x *Execution) Watch(ctx context.Context) (stop func() bool) {
	g, work := x.gateway, x.work // the execution may have been reused by then
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

// drain releases the responses up to the final one, which has arrived.
func (x *Execution) drain() {
	for x.open {
		p := x.Responses.Next(context.Background())
		if x.open = !p.Final; p.Final {
			x.ended(p)
		}
		p.Release()
	}
}

// Pass releases the responses to later requests if the model keeps responses in the order of its requests. It
// is called after the final response was read, by Close at the latest.
func (x *Execution) Pass() {
	if free := x.free; free != nil {
		x.free = nil
		free()
	}
}

// reroute moves a request to the generation of its version that serves now or, if any version will do, to the
// latest version. It returns that version, or nil if none accepts the request or it was rerouted before.
// Requests of a sequence belong together and are not rerouted.
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

// successor moves a returned request to the generation of its version that serves now. It returns that version,
// or nil if none accepts the request.
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
