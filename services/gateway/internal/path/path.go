// Package path is the way of every call through the gateway, whatever its
// protocol: [Stages] lists the stages. A transport makes a [Call] and hands it
// over; what each call needs around its stages stands here once: recovery from
// panics, the release of its memory and metrics.
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

// Protocol is how the calls of one transport differ.
type Protocol struct {
	// Noun is what a restricted API is called in a refusal.
	Noun string
	// HeaderPrefix is before the names of headers that callers of a restricted API
	// send.
	HeaderPrefix string
}

// Options adjust a path. The zero value restricts, bounds and counts nothing.
type Options struct {
	// Restricted are the APIs that need a header.
	Restricted core.Restrictions
	// Forward matches the headers that inferences get as parameters; see [ForwardPattern].
	// Nil matches none.
	Forward *regexp.Regexp
	// Budget bounds the bytes of all calls together. It may be nil.
	Budget *memory.Budget
	// Tenants have the policy that calls are subject to. It may be nil.
	Tenants *tenants.Tenants
	// Costs predict what requests cost, and learn it. It may be nil.
	Costs *tenants.Costs
	// Cache keeps responses. It may be nil.
	Cache *cache.Cache
	// Regions are the memory that clients share. It may be nil; then they share none.
	Regions *regions.Regions
	// Meter counts calls. It may be nil.
	Meter Meter
	// Protocol names the transport, for explanations.
	Protocol string
	// Observers see the inferences, in this order.
	Observers []Observer
	// Audit is called with each call that may change what the server does, and how it has
	// ended. It may be nil.
	Audit func(c *Call, err error)
	// Log is called with errors whose text callers must not see: bugs. It may be
	// nil and is called from any goroutine.
	Log func(method string, err error)
	// Stages replaces [Stages]. It may be nil.
	Stages []Stage
}

// Meter counts calls as their clients see them.
type Meter interface {
	// Failed is called with the reason of each error that a client sees.
	Failed(errs.Reason)
}

// Observer sees inferences. Its functions are called in the goroutines that serve the calls: they
// do not block, and keep nothing that they are called with. Each may be nil.
type Observer struct {
	// Checked is called with each inference whose request is valid and whose tenant's policy has
	// classified it, before limits and dispatch.
	Checked func(*Call)
	// Responding is called with each response before it is sent.
	Responding func(*Call, *infer.Response)
	// Ended is called at the end of each inference that was decoded.
	Ended func(*Outcome)
}

// Outcome is how an inference has ended.
type Outcome struct {
	// Request is the request's identity, and ClientID the one that its client gave it.
	Request  infer.RequestID
	ClientID string
	Protocol string
	Model    infer.ModelID
	// Version is the one that has served it, and BatchSize the request's own.
	Version, BatchSize int64
	// Elements are those of all inputs.
	Elements int64
	// Cached says that the response was known.
	Cached bool
	// Predicted is what the request was expected to cost, in cost units.
	Predicted float64
	// Err is the error that it has ended with; nil for none.
	Err error
	// Tenant, Class and Band are the request's under a policy.
	Tenant, Class, Band string
	// Execution is where the time went at the worker.
	Execution infer.Execution
	// Reason is why it failed; empty where it did not.
	Reason errs.Reason
	// Received is when the request came, Started when it was decoded and Ended when
	// its last response came. Deadline is the client's, 0 for none.
	// Finished is the end of the call.
	Received, Started, Ended, Finished, Deadline mono.Time
	// Responses is how many were sent, in the time Responding.
	Responses  int
	Responding time.Duration
}

// Path takes the calls of one transport to the gateway. It is safe for concurrent
// use.
type Path struct {
	gateway  *core.Gateway
	protocol Protocol
	options  Options
	every    []Stage // of all calls
	stages   []Stage // of inferences, but the last
	last     Stage

	// Of the observers, those that there are.
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

// Do takes a call that is no inference through the stages of all calls, and then
// has it answered.
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

// Start takes an inference through all stages but the last. Where it returns no
// error the caller calls Finish; calls that are started one after another are
// submitted in that order.
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

// Finish takes a started inference through the last stage, which sends its
// responses.
func (p *Path) Finish(c *Call) (err error) {
	defer func() { err = c.end(recover(), err) }()
	return p.last.Run(c)
}

// Visible returns the error of a call as its client may see it. It counts the error,
// and logs what the client may not see.
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

// Panicked is the error of a call that has panicked with v. It is made while the
// panic's stack is there.
func Panicked(v any) error {
	return errs.Wrap(errs.Bug, fmt.Errorf("panic: %v\n%s", v, debug.Stack()), "internal error")
}

// end releases what the call holds, and returns the error that it ends with: a
// panic ends this call and no other.
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

// judge tells the client's connection how the call has gone. A stream says nothing by itself, only
// by its requests. What the server refuses for its load is not the client's fault, and neither is
// what becomes of a request that has reached its model.
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

// report tells what has become of an inference.
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

// servedVersion is the number of the version that has served the request; 0 for none.
func (c *Call) servedVersion() int64 {
	if v := c.Served(); v != nil {
		return v.Ref.Version
	}
	return 0
}
