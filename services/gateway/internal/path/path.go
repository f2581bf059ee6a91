// Package path takes every call through the gateway, whatever its protocol: [Stages] lists the stages. A
// transport makes a [Call] and hands it over. Path also does what every call needs around its stages: it
// recovers from panics, releases the call's memory and counts it in metrics.
package path

import (
	"context"
	"fmt"
	"regexp"
	"runtime/debug"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/gateway/internal/cache"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
	"github.com/nereid-serving/nereid/services/gateway/internal/regions"
	"github.com/nereid-serving/nereid/services/gateway/internal/tenants"
)

// Protocol describes how the calls of one transport differ.
type Protocol struct {
	// Noun is what error messages call a restricted API.
	Noun string
	// HeaderPrefix precedes the names of the headers that callers of a restricted API send.
	HeaderPrefix string
}

// Options configure a path. The zero value restricts, bounds and counts nothing.
type Options struct {
	// Restricted are the APIs that require a header.
	Restricted core.Restrictions
	// Forward matches the headers that inferences receive as parameters; see [ForwardPattern]. Nil matches
	// none.
	Forward *regexp.Regexp
	// Budget bounds the bytes of all calls together. It may be nil.
	Budget *memory.Budget
	// Tenants holds the policy that applies to calls. It may be nil.
	Tenants *tenants.Tenants
	// Costs predicts what requests cost and learns from what they did cost. It may be nil.
	Costs *tenants.Costs
	// Cache stores responses. It may be nil.
	Cache *cache.Cache
	// Regions are the memory regions that clients share. If nil, clients share none.
	Regions *regions.Regions
	// Meter counts calls. It may be nil.
	Meter Meter
	// Protocol names the transport, for explanations.
	Protocol string
	// Observers are called for each inference, in this order.
	Observers []Observer
	// Audit is called with each administrative call (see [core.API.Administrative]) and its error. It may be
	// nil.
	Audit func(c *Call, err error)
	// Log is called with errors whose text callers must not see: bugs. It may be called from any goroutine. It
	// may be nil.
	Log func(method string, err error)
	// Stages replaces [Stages]. It may be nil.
	Stages []Stage
}

// Meter counts calls as clients see them.
type Meter interface {
	// Failed is called with the reason of each error that a client receives.
	Failed(errs.Reason)
}

// Observer observes inferences. Its functions run in the goroutines that serve the calls: they must not block
// or retain their arguments. Each may be nil.
type Observer struct {
	// Checked is called with each inference once its request is valid and the tenant's policy has classified
	// it, before limits and dispatch.
	Checked func(*Call)
	// Responding is called with each response before it is sent.
	Responding func(*Call, *infer.Response)
	// Ended is called at the end of each inference that was decoded.
	Ended func(*Outcome)
}

// Outcome is the result of an inference.
type Outcome struct {
	// Request is the request's identity, and ClientID the client's own id for it.
	Request  infer.RequestID
	ClientID string
	Protocol string
	Model    infer.ModelID
	// Version is the version that served the request, and BatchSize the request's batch size.
	Version, BatchSize int64
	// Elements is the number of elements in all inputs.
	Elements int64
	// Cached says that the response came from the cache.
	Cached bool
	// Predicted is the request's predicted cost, in cost units.
	Predicted float64
	// Err is the error that ended the request, or nil.
	Err error
	// Tenant, Class and Band are what the policy assigned to the request.
	Tenant, Class, Band string
	// Execution is how the request's time was spent at the worker.
	Execution infer.Execution
	// Reason is the reason of Err, or empty.
	Reason errs.Reason
	// Received is when the request arrived, Started when it was decoded, Ended when its last response arrived,
	// and Finished when the call ended. Deadline is the client's, or 0.
	Received, Started, Ended, Finished, Deadline mono.Time
	// Responses is the number of responses sent, and Responding the time spent sending them.
	Responses  int
	Responding time.Duration
}

// Path takes the calls of one transport through the gateway. It is safe for concurrent use.
type Path struct {
	gateway  *core.Gateway
	protocol Protocol
	options  Options
	every    []Stage // stages of all calls
	stages   []Stage // stages of inferences, except the last
	last     Stage

	// The non-nil functions of the observers.
	checked    []func(*Call)
	responding []func(*Call, *infer.Response)
	ended      []func(*Outcome)
}

// New returns a path to g.
func New(g *core.Gateway, protocol Protocol, o Options) *Path {
	if o.Stages == nil {
		o.Stages = Stages()
	}
	p := &Path{gateway: g, protocol: protocol, options: o}
	p.stages, p.last = o.Stages[:len(o.Stages)-1], o.Stages[len(o.Stages)-1]
	for _, s := range o.Stages {
		if s.Every {
			p.every = append(p.every, s)
		}
	}
	for _, by := range o.Observers {
		if by.Checked != nil {
			p.checked = append(p.checked, by.Checked)
		}
		if by.Responding != nil {
			p.responding = append(p.responding, by.Responding)
		}
		if by.Ended != nil {
			p.ended = append(p.ended, by.Ended)
		}
	}
	return p
}

// Do takes a call that is not an inference through the stages that all calls take, and then runs answer.
func (p *Path) Do(ctx context.Context, c *Call, answer func() error) (err error) {
	c.begin(ctx, p)
	defer func() {
		err = c.end(recover(), err)
		if p.options.Audit != nil && c.API.Administrative() {
			p.options.Audit(c, err)
		}
	}()
	for i := range p.every {
		if err := p.every[i].Run(c); err != nil {
			return err
		}
	}
	if err := c.Permit(); err != nil {
		return err
	}
	if c.Client != nil && asksOthers(c.API) {
		c.Client.Wait()
	}
	return answer()
}

// Infer takes an inference through all stages.
func (p *Path) Infer(ctx context.Context, c *Call) error {
	if err := p.Start(ctx, c); err != nil {
		return err
	}
	return p.Finish(c)
}

// Start takes an inference through all stages but the last. If it returns no error, the caller must call
// Finish. Calls started one after another are submitted in that order.
func (p *Path) Start(ctx context.Context, c *Call) (err error) {
	c.begin(ctx, p)
	defer func() {
		if v := recover(); v != nil || err != nil {
			err = c.end(v, err)
		}
	}()
	for i := range p.stages {
		if err := p.stages[i].Run(c); err != nil {
			return err
		}
	}
	return nil
}

// Finish takes a started inference through the last stage, which sends the responses.
func (p *Path) Finish(c *Call) (err error) {
	defer func() { err = c.end(recover(), err) }()
	return p.last.Run(c)
}

// Visible returns the error of a call in the form that its client may see. It counts the error and logs what
// the client may not see.
func (p *Path) Visible(method string, err error) *errs.Error {
	e := errs.Visible(err)
	if p.options.Meter != nil {
		p.options.Meter.Failed(e.Reason)
	}
	if e.Reason == errs.Bug && p.options.Log != nil {
		p.options.Log(method, err)
	}
	return e
}

// Panicked returns the error of a call that panicked with v. Call it while the panic's stack still exists.
func Panicked(v any) error {
	return errs.Wrap(errs.Bug, fmt.Errorf("panic: %v\n%s", v, debug.Stack()), "internal error")
}

// end releases what the call holds and returns its error. A panic ends this call and no other.
func (c *Call) end(panicked any, err error) error {
	if panicked != nil {
		err = Panicked(panicked)
	}
	c.judge(err)
	c.outcome.Version, c.outcome.Predicted = c.servedVersion(), c.Quota.Cost()
	ending := c.execution.Close()
	c.outcome.Execution = ending.Execution
	c.lookup.Close()
	if c.hit != nil {
		c.hit.Release()
		c.hit = nil
	}
	if c.Request != nil {
		c.Request.Release()
		c.Request = nil
	}
	c.closeWindows()
	c.settle(ending.Abandoned)
	c.Account.Close()
	if c.cancel != nil {
		c.cancel()
		c.cancel = nil
	}
	if c.outcome.Received != 0 {
		c.report(err)
	}
	return err
}

// judge reports to the client's connection how the call went. A stream as such is not reported, only its
// requests are. A refusal because of the server's load is not the client's fault, nor is anything that happens
// after the request has reached its model.
func (c *Call) judge(err error) {
	dispatched := c.Target != nil && c.Request == nil
	switch {
	case c.Client == nil:
	case err == nil:
		if dispatched || c.API != core.InferenceAPI {
			c.Client.Served()
		}
	case !dispatched && !errs.Of(err).Retryable():
		c.Client.Refused()
	}
}

// asksOthers reports whether calls of an API may wait for other processes.
func asksOthers(api core.API) bool {
	switch api {
	case core.StatisticsAPI, core.RepositoryAPI, core.ExplainAPI, core.RecordingAPI:
		return true
	}
	return false
}

// report passes the outcome of an inference to the observers.
func (c *Call) report(err error) {
	o := &c.outcome
	o.Finished = c.path.gateway.Now()
	if o.Err, o.Reason = err, errs.Of(err); o.Ended == 0 {
		o.Ended = o.Finished
	}
	o.Request, o.ClientID, o.Protocol = c.Work, c.ID, c.path.options.Protocol
	for _, ended := range c.path.ended {
		ended(o)
	}
}

// servedVersion returns the number of the version that served the request, or 0.
func (c *Call) servedVersion() int64 {
	if v := c.Served(); v != nil {
		return v.Ref.Version
	}
	return 0
}
