package path

import (
	"context"
	"crypto/x509"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/gateway/internal/cache"
	"github.com/nereid-serving/nereid/services/gateway/internal/classify"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
	"github.com/nereid-serving/nereid/services/gateway/internal/tenants"
)

// Call is one call of a client. Its transport sets the head, and for an inference
// the body and the sink. A call may be used again after its end.
type Call struct {
	// API is the group of endpoints that is called; a call of none is refused.
	API core.API
	// Method is the endpoint, for messages.
	Method string
	Caller Caller
	// Model and Version are as the client names them. Where the body names them,
	// Body.Receive sets them.
	Model, Version string
	// Headers calls each with every header of an inference whose headers may become
	// parameters; nil for one whose may not.
	Headers func(each func(name string, values []string))
	// Trace is the W3C traceparent, or empty.
	Trace string
	// Single names an endpoint that gives exactly one response; it is empty for one
	// that gives any number.
	Single string
	// One is the refusal of an endpoint that takes a request for any model, if the model
	// gives another number of responses than one. It is empty for one that gives any
	// number, and where Single is not.
	One  string
	Body Body
	Sink Sink
	// Client is told how the call goes. It may be nil.
	Client Client

	// Admitted says that the caller has sent what a restricted API demands.
	Admitted bool
	// Connected says that the call's connection was open before the gateway began to drain.
	Connected bool
	// Tenant is whose call it is; nil without a policy.
	Tenant *tenants.Tenant
	// Quota is what the call holds of its tenant's limits, and what is left of them.
	Quota tenants.Reservation
	// Account is what the call holds of the budget. Received says that its transport
	// has opened it, for a message that came before the call.
	Account  memory.Account
	Received bool
	// Target is the version that was resolved. The one that responds may be
	// another: see [Call.Served].
	Target *core.Version
	// Request is the request, from its resolution to its dispatch.
	Request *infer.Request
	// Work is the request's identity, and ID its client's.
	Work infer.RequestID
	ID   string
	// Classes are the outputs of which classes are asked for, and EmptyFinal asks
	// for the end of a decoupled model's responses as a message of its own. The
	// body sets them.
	Classes    []classify.Output
	EmptyFinal bool
	// Shared are the tensors in regions of the client's memory. The body sets them.
	Shared Shared

	path      *Path
	view      *tenants.View // the policy of the call; nil without one
	ctx       context.Context
	cancel    context.CancelFunc // of the timeout; nil without one
	execution core.Execution
	lookup    cache.Lookup    // in the response cache
	hit       *infer.Response // that it has found, until the request is admitted
	detached  int64           // bytes of the response that is being sent; see Detach
	shared    shared
	outcome   Outcome
}

// Caller is what a transport knows of who calls.
type Caller = tenants.Credentials

// Client is the connection of a call, which must be served to keep its standing: see package
// turns.
type Client interface {
	// Wait says that the call waits from now on, for its model or for other processes.
	Wait()
	// Served says that the call was served, and Refused that it was refused for what the
	// client alone is responsible for.
	Served()
	Refused()
}

// CertificateNames are the names in the first of a client's certificates: its common name,
// DNS names and URIs.
func CertificateNames(chain []*x509.Certificate) []string {
	if len(chain) == 0 {
		return nil
	}
	names := append([]string{chain[0].Subject.CommonName}, chain[0].DNSNames...)
	for _, uri := range chain[0].URIs {
		names = append(names, uri.String())
	}
	return names
}

// Body is the body of an inference.
type Body interface {
	// Receive receives as much as names the model.
	Receive() error
	// Decode reads the request into the call's, by the configuration of its target.
	// What the request holds after an error is released.
	Decode() error
}

// Sink takes the responses of an inference.
type Sink interface {
	// Send sends one response, and returns when the next one may come: it is the
	// backpressure. It does not keep the response.
	Send(*infer.Response) error
}

func (c *Call) begin(ctx context.Context, p *Path) {
	c.path, c.ctx = p, ctx
	c.Admitted, c.Tenant, c.Quota, c.view = false, nil, tenants.Reservation{}, nil
	c.Target, c.Work, c.ID = nil, infer.RequestID{}, ""
	c.Classes, c.EmptyFinal, c.detached, c.outcome = nil, false, 0, Outcome{}
}

// Context is the call's, which ends at its deadline.
func (c *Call) Context() context.Context { return c.ctx }

// Budget is the one to which the call is charged: that of its tenant, or of all calls.
func (c *Call) Budget() *memory.Budget {
	if c.Tenant == nil {
		return c.path.options.Budget
	}
	return c.Tenant.Memory(c.path.options.Budget)
}

// SetTimeout ends the call, whose request has been resolved, so long after its
// arrival.
func (c *Call) SetTimeout(d time.Duration) {
	c.Request.Deadline = c.Request.Received.Add(d)
	c.ctx, c.cancel = context.WithTimeout(c.ctx, d)
}

// Served is the version by which the request was executed.
func (c *Call) Served() *core.Version {
	if v := c.execution.Version(); v != nil {
		return v
	}
	return c.Target
}

// Detach keeps n bytes of the response that is being sent charged until the
// function that it returns is called: when the client has them.
func (c *Call) Detach(n int64) (release func()) {
	c.detached += n
	return c.Account.Detach(n)
}

// next returns the next response, which the caller releases.
func (c *Call) next() (r *infer.Response, err error) {
	r, err = c.execution.Next(c.ctx)
	if err != nil || r.Final {
		c.outcome.Ended = c.path.gateway.Now()
	}
	return r, err
}

// send sends a response, with classes in the place of outputs of which they are
// asked for.
func (c *Call) send(r *infer.Response) error {
	if len(c.Classes) > 0 {
		before := r.OutputBytes()
		if err := classify.Apply(c.Served().Config, c.Classes, r); err != nil {
			return err
		}
		if more := r.OutputBytes() - before; more > 0 {
			if err := c.Account.Charge(more, false); err != nil {
				return err
			}
		}
	}
	for _, responding := range c.path.responding {
		responding(c, r)
	}
	if len(c.Shared.Outputs) > 0 {
		if err := c.deposit(r); err != nil {
			return err
		}
	}
	if r.Final { // before the sending, which a slow client may hold up
		c.closeWindows()
		c.execution.Pass()
	}
	started := time.Now()
	err := c.Sink.Send(r)
	c.outcome.Responding += time.Since(started)
	c.outcome.Responses++
	return err
}

// Protocol names the transport.
func (c *Call) Protocol() string { return c.path.options.Protocol }
