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

// Call is one call of a client. Its transport sets the exported fields up to Client; Body and Sink only for an
// inference. A call may be reused after it has ended.
type Call struct {
	// API is the group of endpoints that is called. A call without one is refused.
	API core.API
	// Method is the endpoint's name, for messages.
	Method string
	Caller Caller
	// Model and Version are as the client names them. If the body names them, Body.Receive sets them.
	Model, Version string
	// Headers calls each with every header of an inference whose headers may become parameters; it is nil if
	// they may not.
	Headers func(each func(name string, values []string))
	// Trace is the W3C traceparent, or empty.
	Trace string
	// Single names an endpoint that returns exactly one response, and is empty for one that may return any
	// number.
	Single string
	// One is the error text of an endpoint that accepts any model, for a model that does not return exactly one
	// response. It is empty if the endpoint returns any number of responses, or if Single is set.
	One  string
	Body Body
	Sink Sink
	// Client is notified of the call's progress. It may be nil.
	Client Client

	// Admitted says that the caller sent the header that a restricted API requires.
	Admitted bool
	// Connected says that the call's connection was open before the drain started.
	Connected bool
	// Tenant is the caller's tenant; nil without a policy.
	Tenant *tenants.Tenant
	// Quota is what the call has reserved of its tenant's limits, and what remains of them.
	Quota tenants.Reservation
	// Account is what the call has charged to the budget. Received says that the transport has already opened
	// it, for a message that arrived before the call started.
	Account  memory.Account
	Received bool
	// Target is the resolved version. Another version may serve the request: see [Call.Served].
	Target *core.Version
	// Request is set from the request's resolution until its dispatch.
	Request *infer.Request
	// Work identifies the request; ID is the client's own id for it.
	Work infer.RequestID
	ID   string
	// Classes are the outputs for which classification is requested. EmptyFinal asks for the end of a decoupled
	// model's responses as a separate message. The body sets both.
	Classes    []classify.Output
	EmptyFinal bool
	// Shared are the tensors in regions of the client's memory. The body sets it.
	Shared Shared

	path      *Path
	view      *tenants.View // the policy of the call; nil without one
	ctx       context.Context
	cancel    context.CancelFunc // of the timeout; nil without one
	execution core.Execution
	lookup    cache.Lookup    // the lookup in the response cache
	hit       *infer.Response // the response that lookup found, until the request is admitted
	detached  int64           // bytes detached from the response being sent; see Detach
	shared    shared
	outcome   Outcome
}

// Caller is what a transport knows about the caller.
type Caller = tenants.Credentials

// Client is the connection of a call. It must have calls served to keep its standing: see package turns.
type Client interface {
	// Wait reports that from now on the call waits for its model or for another process.
	Wait()
	// Served reports that the call was served, and Refused that it was refused for a reason that the client
	// alone is responsible for.
	Served()
	Refused()
}

// CertificateNames returns the names in the first certificate of a client's chain: the common name, DNS names
// and URIs.
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
	// Receive reads enough of the body to know the model.
	Receive() error
	// Decode decodes the body into the call's request, by the configuration of the call's target. If it fails,
	// the call releases what the request holds.
	Decode() error
}

// Sink receives the responses of an inference.
type Sink interface {
	// Send sends one response and returns when it can take the next one, which makes it the backpressure. It
	// does not retain the response.
	Send(*infer.Response) error
}

func (c *Call) begin(ctx context.Context, p *Path) {
	c.path, c.ctx = p, ctx
	c.Admitted, c.Tenant, c.Quota, c.view = false, nil, tenants.Reservation{}, nil
	c.Target, c.Work, c.ID = nil, infer.RequestID{}, ""
	c.Classes, c.EmptyFinal, c.detached, c.outcome = nil, false, 0, Outcome{}
}

// Context returns the call's context, which ends at the deadline.
func (c *Call) Context() context.Context { return c.ctx }

// Budget returns the budget that the call is charged to: its tenant's, or the one for all calls.
func (c *Call) Budget() *memory.Budget {
	if c.Tenant == nil {
		return c.path.options.Budget
	}
	return c.Tenant.Memory(c.path.options.Budget)
}

// SetTimeout ends the call when d has passed since its request arrived. The request must have been resolved.
func (c *Call) SetTimeout(d time.Duration) {
	c.Request.Deadline = c.Request.Received.Add(d)
	c.ctx, c.cancel = context.WithTimeout(c.ctx, d)
}

// Served returns the version that executed the request.
func (c *Call) Served() *core.Version {
	if v := c.execution.Version(); v != nil {
		return v
	}
	return c.Target
}

// Detach keeps n bytes of the response that is being sent charged until release is called, which is when the
// client has received them.
func (c *Call) Detach(n int64) (release func()) {
	c.detached += n
	return c.Account.Detach(n)
}

// next returns the next response. The caller releases it.
func (c *Call) next() (r *infer.Response, err error) {
	r, err = c.execution.Next(c.ctx)
	if err != nil || r.Final {
		c.outcome.Ended = c.path.gateway.Now()
	}
	return r, err
}

// send sends a response, in which classifications replace the outputs that they were requested for.
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
	if r.Final { // before sending, which a slow client may delay
		c.closeWindows()
		c.execution.Pass()
	}
	started := time.Now()
	err := c.Sink.Send(r)
	c.outcome.Responding += time.Since(started)
	c.outcome.Responses++
	return err
}

// Protocol returns the transport's name.
func (c *Call) Protocol() string { return c.path.options.Protocol }
