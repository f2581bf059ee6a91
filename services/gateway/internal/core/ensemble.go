package core

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/gateway/internal/cache"
	"github.com/nereid-serving/nereid/services/gateway/internal/ensemble"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
)

// Composed is what executes an ensemble: its graph and the versions of its steps.
type Composed struct {
	Graph *ensemble.Graph
	Steps []*Version

	versions string // of the ensemble and of all steps
}

// composition is a request for an ensemble in progress. Each step is a request of its own, submitted by the
// goroutine that reads the ensemble's responses. A client that does not read therefore delays only the steps of
// its own request.
type composition struct {
	gateway *Gateway
	version *Version
	parent  *infer.Request  // its inputs are released at the end
	account *memory.Account // charged for step responses, even after the call ends; may be nil
	run     *ensemble.Run
	begun   map[*ensemble.Execution]*stepRequest // those that have not ended
	events  inbox
	started bool            // its steps are submitted as their inputs arrive
	over    bool            // its end has been counted
	spent   infer.Execution // the sum over the steps that have responded
	// find looks for the response before any step is submitted. It is nil afterwards, and if there is nowhere
	// to look.
	find func(context.Context) *infer.Response
}

// stepRequest is one execution of a step.
type stepRequest struct {
	composition *composition
	execution   *ensemble.Execution
	version     *Version
	work        infer.Work
	cancel      context.CancelFunc // of a step that is an ensemble or waits for a lookup; nil for others
	lookup      cache.Lookup       // of the step's response
	finding     bool               // a separate goroutine runs the lookup
	observe     func(*infer.Response)
	free        func() // frees the request's slot; nil if responses need no order
	executed    bool   // otherwise its response was found
	rerouted    bool
	limited     bool      // it counts against the limit of its step's executions, or waits to
	submitted   mono.Time // 0 before submission
}

// name identifies the step within the ensemble that is being executed.
func (s *stepRequest) name() stepName {
	return stepName{s.composition.version.Ref, s.execution.Step}
}

// compose takes over a checked request whose steps are not submitted yet.
func (x *Execution) compose(r *infer.Request) *composition {
	c := &composition{
		gateway: x.gateway, version: x.version, parent: r, account: x.Account.Fork(),
		run: x.version.Composed.Graph.Begin(r), begun: make(map[*ensemble.Execution]*stepRequest),
		events: inbox{arrived: make(chan struct{}, 1)},
	}
	x.composition = c
	c.gateway.underway.begin(c.version.Composed)
	return c
}

// begin submits the first steps.
func (c *composition) begin() {
	c.started = true
	if err := c.submitReady(); err != nil {
		c.gateway.requests.Finish(infer.Fail(c.parent.Work, err))
	}
}

// search starts the steps unless find returns the ensemble's response.
func (c *composition) search(ctx context.Context) {
	find := c.find
	c.find = nil
	p := find(ctx)
	if p == nil {
		c.begin()
		return
	}
	c.over = true // it counts as a cache hit
	p.Work = c.parent.Work
	c.gateway.requests.Respond(p)
}

// next returns the request's next response, which for an ensemble comes from the table as for any model, or nil
// if ctx is done first.
func (x *Execution) next(ctx context.Context) *infer.Response {
	c := x.composition
	if c == nil {
		return x.Responses.Next(ctx)
	}
	if c.find != nil {
		c.search(ctx)
	}
	for {
		if p := x.Responses.TryNext(); p != nil {
			return p
		}
		if c.proceed() {
			continue
		}
		select {
		case <-x.Responses.Arrived():
		case <-c.events.arrived:
		case <-ctx.Done():
			return x.Responses.TryNext()
		}
	}
}

// proceed does all work that is possible now, and reports whether the ensemble has responded.
func (c *composition) proceed() (responded bool) {
	var err error
	for _, e := range c.events.take() {
		if err != nil {
			e.drop()
			continue
		}
		err = c.take(e)
	}
	if err == nil {
		err = c.submitReady()
	}
	if err != nil {
		return c.fail(err)
	}
	return c.respond(c.run.Response())
}

// respond forwards a response of the ensemble, if there is one.
func (c *composition) respond(p ensemble.Response) bool {
	if p.Response == nil {
		return false
	}
	for _, output := range p.Missing {
		c.gateway.omissions.note(c.version.Ref, output, c.gateway.Now())
	}
	p.Work = c.parent.Work
	c.gateway.requests.Respond(p.Response)
	return true
}

// fail ends the ensemble with an error. A decoupled ensemble first sends the responses that were already
// complete.
func (c *composition) fail(err error) bool {
	if c.version.Config.Decoupled {
		for c.respond(c.run.Completed()) {
		}
	}
	return c.gateway.requests.Finish(infer.Fail(c.parent.Work, err))
}

// take handles an event. It returns the error that ends the ensemble, if any.
func (c *composition) take(e event) error {
	switch {
	case e.request != nil:
		e.step.finding = false
		c.dispatch(e.step, e.request)
		return nil
	case e.response == nil:
		return c.failed(e.step, c.submit(e.step))
	}
	return c.stepResponded(e.step, e.response)
}

// stepResponded records a response of a step. It returns the error that ends the ensemble, if any.
func (c *composition) stepResponded(s *stepRequest, p *infer.Response) error {
	c.spent.Cost += p.Execution.Cost
	c.spent.Input += p.Execution.Input
	c.spent.Ran += p.Execution.Ran
	c.spent.Output += p.Execution.Output
	if p.Err != nil {
		return c.refused(s, p)
	}
	final := p.Final
	s.keep(p)
	if final {
		delete(c.begun, s.execution)
		s.pass()
		if s.executed {
			c.gateway.paces.took(s.version.Ref, c.gateway.Now().Sub(s.submitted))
		}
	}
	c.run.Respond(s.execution, p)
	return nil
}

// refused handles a step's error. A step whose generation was unloaded before the step was queued is submitted
// once more, to the successor.
func (c *composition) refused(s *stepRequest, p *infer.Response) error {
	defer p.Release()
	s.pass()
	s.lookup.Close()
	r := p.Returned
	if p.Returned = nil; r == nil {
		return c.failed(s, p.Err)
	}
	next := c.gateway.Snapshot().successor(s.version, r)
	if s.rerouted || next == nil {
		r.Release()
		return c.failed(s, p.Err)
	}
	s.version, s.rerouted = next, true
	s.work = r.Work
	c.open(s, r)
	return nil
}

// failed turns a step's error into the ensemble's, in Triton's words. The log also names the step.
func (c *composition) failed(s *stepRequest, err error) error {
	if err == nil {
		return nil
	}
	e := *errs.From(err)
	e.Msg, e.Err = fmt.Sprintf("in ensemble '%s', %s", c.version.Ref.Name, e.Msg), err
	e.Op = fmt.Sprintf("step %d, model '%s'", s.execution.Step, s.version.Ref.Name)
	if e.Model == "" {
		e.Model = s.version.Ref.Name
	}
	return &e
}

// submitReady submits the steps whose inputs are available.
func (c *composition) submitReady() error {
	for e := c.run.Next(); e != nil; e = c.run.Next() {
		s := &stepRequest{composition: c, execution: e, version: c.version.Composed.Steps[e.Step]}
		c.begun[e] = s
		if most := c.version.Config.Ensemble.MaxInFlight; most > 0 {
			s.limited = true
			if !c.gateway.limits.begin(s, most) {
				continue
			}
		}
		if err := c.submit(s); err != nil {
			return c.failed(s, err)
		}
	}
	return nil
}

// request makes the request of a step, which inherits its parent's attributes.
func (c *composition) request(s *stepRequest) *infer.Request {
	of := c.parent
	r := c.gateway.NewRequest(s.version)
	r.Work.Revision = of.Work.Revision
	r.ID, r.Parameters, r.Priority, r.Timeout, r.Deadline = of.ID, of.Parameters, of.Priority, of.Timeout, c.deadline(s.execution.Step)
	r.Parent, r.Tenant, r.CostClass, r.Share, r.Trace = of.Parent, of.Tenant, of.CostClass, of.Share, of.Trace
	r.KeepOutputs = s.execution.Inner
	r.Inputs, r.Outputs, r.Sequence = s.execution.Inputs, s.execution.Outputs, s.execution.Sequence
	s.work = r.Work
	return r
}

// deadline returns when a step must end for the steps behind it to meet the request's deadline. It assumes that
// those run at their recent best: only a request without any chance is given up.
func (c *composition) deadline(step int) mono.Time {
	if c.parent.Deadline == 0 {
		return 0
	}
	rest := c.version.Composed.Graph.Behind(step, func(behind int) time.Duration {
		return c.gateway.paces.least(c.version.Composed.Steps[behind].Ref)
	})
	return c.parent.Deadline.Add(-rest)
}

func (c *composition) submit(s *stepRequest) error {
	r := c.request(s)
	s.submitted = r.Received
	if err := Check(s.version, r); err != nil {
		r.Release()
		return err
	}
	if !c.reuse(s, r) {
		c.dispatch(s, r)
	}
	return nil
}

// dispatch executes the request of a step.
func (c *composition) dispatch(s *stepRequest, r *infer.Request) {
	s.executed = true
	if s.version.Composed != nil {
		c.nest(s, r)
		return
	}
	s.cancel = nil
	c.open(s, r)
}

// open enters a step's request in the table and submits it.
func (c *composition) open(s *stepRequest, r *infer.Request) {
	g := c.gateway
	if b := s.version.Config.Batching; b != nil && b.PreserveOrdering {
		s.free = g.requests.OpenInOrder(s.work, &s.version.Ref, s).Free
	} else {
		g.requests.Open(s.work, &s.version.Ref, s)
	}
	if err := g.dispatcher.Submit(r); err != nil {
		r.Release()
		g.requests.Finish(infer.Fail(s.work, err))
	}
}

// pass lets the next execution of the step start if their number is limited, and releases the responses to
// later requests if they keep their order.
func (s *stepRequest) pass() {
	if s.limited {
		s.limited = false
		s.composition.gateway.limits.end(s.name())
	}
	if free := s.free; free != nil {
		s.free = nil
		free()
	}
}

// nest executes a step that is itself an ensemble, in a goroutine that ends with the step.
func (c *composition) nest(s *stepRequest, r *infer.Request) {
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	x := &Execution{Account: c.account, gateway: c.gateway}
	x.enter(s.version, r)
	x.Dispatch(r)
	go func() {
		defer cancel()
		defer x.Close()
		for final := false; !final; {
			p, err := x.Next(ctx)
			if err != nil {
				p = infer.Fail(s.work, err)
			}
			if final = p.Final; final {
				p.Execution = x.composition.spent
			}
			s.Receive(p)
		}
	}()
}

// Receive implements requests.Receiver.
func (s *stepRequest) Receive(p *infer.Response) (last bool) {
	last = p.Final
	if s.observe != nil {
		s.observe(p)
	}
	if err := s.charge(p); err != nil {
		p.Release()
		p, last = infer.Fail(s.work, err), true
	}
	s.composition.events.put(event{step: s, response: p})
	return last
}

// charge charges what a step has responded until the response is released.
func (s *stepRequest) charge(p *infer.Response) error {
	n, account := infer.LocalBytes(p.Outputs), s.composition.account
	if n == 0 || account == nil || s.version.Composed != nil { // an ensemble's steps have been charged already
		return nil
	}
	if err := account.Charge(n, false); err != nil {
		return err
	}
	refund, released := account.Detach(n), p.OnRelease
	p.OnRelease = func() {
		refund()
		if released != nil {
			released()
		}
	}
	return nil
}

// count counts the end of the ensemble's request, once.
func (c *composition) count(failed bool) {
	if c.over {
		return
	}
	c.over = true
	c.gateway.ended(c.version.Pool, infer.EnsembleEnd{
		Model: c.version.Ref, Failed: failed, Time: c.gateway.Now().Sub(c.parent.Received), BatchSize: c.parent.BatchSize,
		Input: c.spent.Input, Infer: c.spent.Ran - c.spent.Output, Output: c.spent.Output,
	})
}

// close ends the steps that are still running and releases what the request holds.
func (c *composition) close() {
	for _, s := range c.begun {
		if s.limited && c.gateway.limits.leave(s) {
			s.limited = false
		}
		if s.submitted == 0 {
			s.execution.Release()
			s.pass()
			continue
		}
		if !s.finding {
			s.lookup.Close()
		}
		if s.cancel != nil {
			s.cancel()
			s.pass()
			continue
		}
		c.gateway.cancel(s.work, errs.Wrap(errs.Canceled, errStepOver, ""))
		s.pass()
	}
	c.count(true)
	c.events.close()
	c.run.Close()
	c.account.Close()
	c.parent.Release()
	c.gateway.underway.end(c.version.Composed)
}

var errStepOver = errors.New("the ensemble has ended")

// event is one of three: a response of a step; the request of a step whose lookup found no response; or, with
// neither, permission for a waiting step to start.
type event struct {
	step     *stepRequest
	response *infer.Response
	request  *infer.Request
}

// drop releases what an event holds.
func (e *event) drop() {
	if e.response != nil {
		e.response.Release()
	}
	if e.request != nil {
		e.request.Release()
		e.step.lookup.Close()
	}
}

// inbox holds the events of a request's steps in the order of their arrival.
type inbox struct {
	arrived chan struct{} // buffers one signal

	mu     sync.Mutex
	list   []event // guarded by mu
	closed bool    // guarded by mu
}

// put adds an event, or drops it if the inbox is closed.
func (b *inbox) put(e event) {
	b.mu.Lock()
	closed := b.closed
	if !closed {
		b.list = append(b.list, e)
	}
	b.mu.Unlock()
	if closed {
		e.drop()
		return
	}
	select {
	case b.arrived <- struct{}{}:
	default:
	}
}

func (b *inbox) take() (list []event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	list, b.list = b.list, nil
	return list
}

// close releases the pending events and those that arrive later.
func (b *inbox) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	for _, e := range b.take() {
		e.drop()
	}
}
