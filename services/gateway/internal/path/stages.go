package path

import (
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/gateway/internal/classify"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// Stage is one step that a call goes through.
type Stage struct {
	Name string
	// Every says that all calls take the stage; otherwise only inferences do.
	Every bool
	// Run returns nil to let the call continue, or the error that ends it.
	Run func(*Call) error
}

// Stages lists the stages in order. To add a stage, add a value.
//
// A caller is identified and authorized before any of its request is read and before it learns which models
// exist. The body is decoded after the model is resolved: JSON is decoded by the model's configuration, and as
// in Triton an unknown model is reported before a malformed body.
func Stages() []Stage {
	return []Stage{
		{Name: "identify", Every: true, Run: identify},
		{Name: "authorize", Every: true, Run: authorize},
		{Name: "operable", Every: true, Run: operable},
		{Name: "enter", Run: enter},
		{Name: "budget", Every: true, Run: budget},
		{Name: "receive", Run: receive},
		{Name: "route", Run: route},
		{Name: "resolve", Run: resolve},
		{Name: "decode", Run: decode},
		{Name: "attach", Run: attach},
		{Name: "check", Run: check},
		{Name: "classify", Run: classifyRequest},
		{Name: "observe", Run: observe},
		{Name: "price", Run: price},
		{Name: "cache", Run: lookUp},
		{Name: "admit", Run: admit},
		{Name: "dispatch", Run: dispatch},
		{Name: "stream", Run: stream},
	}
}

// identify determines whether the caller sent the header that a restricted API requires and, under a policy,
// which tenant is calling. Health probes need no credentials: anyone may ask whether the server is healthy.
func identify(c *Call) (err error) {
	secret, restricted := c.path.options.Restricted[c.API]
	c.Admitted = !restricted
	if restricted {
		for _, sent := range c.Caller.Header(c.path.protocol.HeaderPrefix + secret.Header) {
			c.Admitted = c.Admitted || secret.Matches(sent)
		}
	}
	if c.API == core.HealthAPI {
		return nil
	}
	if c.view, err = c.path.options.Tenants.View(); c.view != nil {
		c.Tenant, err = c.view.Identify(c.Caller)
	}
	return err
}

// authorize refuses a caller who may not use the API. A call without an API is refused to everyone.
func authorize(c *Call) error {
	switch {
	case c.API == "":
		return errs.New(errs.Unsupported, "%s is not supported by this server", c.Method)
	case !c.Admitted:
		header := c.path.protocol.HeaderPrefix + c.path.options.Restricted[c.API].Header
		return errs.New(errs.APIRestricted, "This %s is restricted, expecting header '%s'", c.path.protocol.Noun, header)
	case c.Tenant != nil:
		return c.Tenant.Refuse(c.Tenant.MayCall(string(c.API)))
	}
	return nil
}

// operable refuses calls that a server without a repository cannot serve. Health and metadata calls pass: those
// that concern a model check for themselves.
func operable(c *Call) error {
	if c.API == core.HealthAPI || c.API == core.MetadataAPI {
		return nil
	}
	return c.path.gateway.Operable()
}

// budget opens the account that the call's bytes are charged to as they arrive. While the budget is exceeded, a
// call is refused before its request takes more memory. Health probes pass: restarting an overloaded server
// helps nobody.
func budget(c *Call) error {
	if c.Received {
		return nil
	}
	b := c.Budget()
	c.Account.Open(b)
	if c.API == core.HealthAPI {
		return nil
	}
	return b.Exceeded()
}

func receive(c *Call) error { return c.Body.Receive() }

// resolve finds the version that the caller means, and starts its request.
func resolve(c *Call) error {
	v, err := c.path.gateway.Snapshot().Resolve(c.Model, c.Version)
	if err != nil {
		return err
	}
	if c.Single != "" && v.Config.Decoupled {
		return errs.New(errs.Unsupported, "%s doesn't support models with decoupled transaction policy", c.Single).WithModel(c.Model)
	}
	c.Target = v
	c.Request = c.path.gateway.NewRequest(v)
	c.Request.AnyVersion, c.Request.Trace = c.Version == "", c.Trace
	c.Work = c.Request.Work.Request
	return nil
}

func decode(c *Call) error {
	err := c.Body.Decode()
	if err == nil {
		err = c.forward()
	}
	c.ID = c.Request.ID
	return err
}

// check validates the request against its model.
func check(c *Call) error {
	c.outcome = Outcome{
		Model: c.Target.Ref.ID(), Received: c.Request.Received, Deadline: c.Request.Deadline, Started: c.path.gateway.Now(),
	}
	if err := classify.Check(c.Target.Config, c.Classes); err != nil {
		return err
	}
	err := core.Check(c.Target, c.Request)
	c.outcome.BatchSize, c.outcome.Elements = c.Request.BatchSize, c.countElements()
	return err
}

// observe passes the request to the observers. It runs before the tenant's limits apply, because refused
// requests are load too.
func observe(c *Call) error {
	for _, checked := range c.path.checked {
		checked(c)
	}
	return nil
}

// lookUp looks for a cached response. It is delivered only once the request is admitted, so that a hit keeps
// the order of responses and a draining gateway refuses it.
func lookUp(c *Call) error {
	c.lookup, c.hit = c.Target.LookUp(c.path.options.Cache, c.Request)
	return nil
}

// admit enters the request in the table of requests in flight, unless the gateway is draining.
func admit(c *Call) error {
	c.execution.Account, c.execution.Observe, c.execution.Connected = &c.Account, c.lookup.Observer(), c.Connected
	return c.execution.Admit(c.path.gateway, c.Target, c.Request)
}

// dispatch submits the request to its scheduler unless its response is cached. If a lookup is still pending,
// the request is submitted once the lookup fails; later calls do not wait for it. A refusal by the scheduler
// arrives as a response.
func dispatch(c *Call) error {
	r := c.Request
	c.Request = nil // owned by the scheduler from here on
	if c.Client != nil {
		c.Client.Wait()
	}
	if hit := c.hit; hit != nil {
		c.hit, c.outcome.Cached = nil, true
		r.Release()
		c.execution.Complete(hit)
		return nil
	}
	if c.lookup.Pending() {
		c.execution.DispatchUnless(c.ctx, c.lookup.Find, r)
		return nil
	}
	c.execution.Dispatch(r)
	return nil
}

// stream passes the responses to the sink. For a decoupled model it sends them as they arrive. For any other
// model, and for an endpoint that requires exactly one response, it sends only that one.
func stream(c *Call) error {
	if !c.Target.Config.Decoupled || c.One != "" {
		return single(c)
	}
	watched := false
	for {
		r, err := c.next()
		if err != nil {
			return err
		}
		final, size := r.Final, r.OutputBytes()
		if !final && !watched { // the deadline may pass while the client is not reading
			watched = true
			defer c.execution.Watch(c.ctx)()
		}
		if len(r.Outputs) > 0 || !final || c.EmptyFinal {
			err = c.send(r)
		}
		r.Release()
		c.Account.Refund(size - c.detached)
		c.detached = 0
		if err != nil || final {
			return err
		}
	}
}

// single waits for the last response and sends the only one.
func single(c *Call) error {
	r, err := c.next()
	if err != nil {
		return err
	}
	defer r.Release()
	count := 1
	if c.Target.Config.Decoupled && r.Final && len(r.Outputs) == 0 { // only the final flag
		count = 0
	}
	for !r.Final {
		more, err := c.next()
		if err != nil {
			return err
		}
		if r.Final = more.Final; !more.Final || len(more.Outputs) > 0 {
			count++
		}
		more.Release()
		if count > 1 && c.One != "" { // a decoupled model may go on for ever
			break
		}
	}
	switch {
	case count != 1 && c.One != "":
		return errs.New(errs.ResponseCount, "%s", c.One)
	case count != 1:
		return errs.New(errs.ResponseCount, "expected a single response, got %d", count)
	}
	if c.Served() == c.Target { // otherwise it was rerouted, and its key belongs to other content
		c.lookup.Keep(r)
	}
	return c.send(r)
}
