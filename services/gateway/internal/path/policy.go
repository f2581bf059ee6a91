package path

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/policy"
	"github.com/nereid-serving/nereid/services/gateway/internal/tenants"
)

// Permit refuses the call if the tenant may not use the model that it names.
func (c *Call) Permit() error {
	if c.Tenant == nil || c.Model == "" {
		return nil
	}
	return c.Tenant.Refuse(c.Tenant.MayUse(c.Model))
}

// Sees reports whether the caller sees this model in lists of all models.
func (c *Call) Sees(model string) bool {
	return c.Tenant == nil || c.Tenant.Shadowed() || c.Tenant.MayUse(model) == nil
}

// SeesAll reports whether the caller sees every model in lists of all models.
func (c *Call) SeesAll() bool {
	return c.Tenant == nil || c.Tenant.Shadowed() || c.Tenant.Models() == nil
}

// PermitAll refuses tenants that are limited to some models. It is for calls whose effects on models other than
// the named one cannot be known.
func (c *Call) PermitAll() error {
	if c.Tenant == nil || c.Tenant.Models() == nil {
		return nil
	}
	return c.Tenant.Refuse(errs.New(errs.TenantForbidden, "tenant '%s' may not use every model: name each", c.Tenant.Name))
}

type callKey struct{}

// WithCall returns a context from which handlers in generated code get their call.
func WithCall(ctx context.Context, c *Call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

// CallOf returns the call in a context made by WithCall.
func CallOf(ctx context.Context) *Call { return ctx.Value(callKey{}).(*Call) }

// route applies the policy's routing: it sets the model and version that the request goes to.
func route(c *Call) error {
	if c.Tenant == nil {
		return nil
	}
	if err := c.Permit(); err != nil {
		return err
	}
	to := c.view.Route(c.Tenant.Tenant, &policy.Request{Model: c.Model, Version: c.Version, Header: tenants.Headers(c.Caller)}, rand.Float64()) //nolint:gosec // no secret
	c.Model, c.Version = to.Model, to.Version
	return nil
}

// classifyRequest applies the policy's classification, and sets a deadline if the client gave none. Under a
// policy Triton's parameter timeout is a deadline.
func classifyRequest(c *Call) error {
	if c.Tenant == nil {
		return nil
	}
	r := c.Request
	is := c.view.Classify(c.Tenant.Tenant, &policy.Request{
		Model: c.Model, Version: c.Version, Header: tenants.Headers(c.Caller), BatchSize: r.BatchSize,
		Elements: c.outcome.Elements, Bytes: r.InputBytes(), Priority: r.Priority,
		Inputs: func(each func(string, []int64)) {
			for i := range r.Inputs {
				each(r.Inputs[i].Name, r.Inputs[i].Shape)
			}
		},
	})
	band := &c.view.Bands[is.Band]
	r.Tenant, r.CostClass = c.Tenant.Name, is.Name
	r.Share = infer.Share{Band: uint32(is.Band) + 1, Minimum: thousandths(band.Minimum), Weight: max(thousandths(c.Tenant.Weight), 1)} //nolint:gosec // few bands
	c.outcome.Tenant, c.outcome.Class, c.outcome.Band = r.Tenant, is.Name, band.Name
	switch {
	case r.Deadline != 0:
	case r.Timeout > 0:
		c.SetTimeout(r.Timeout)
	case is.Deadline > 0:
		c.SetTimeout(is.Deadline)
	}
	c.outcome.Deadline = r.Deadline
	return nil
}

func thousandths(v float64) uint32 { return uint32(min(v, 1e6)*1000 + 0.5) }

// countElements counts the elements of all inputs.
func (c *Call) countElements() (n int64) {
	for i := range c.Request.Inputs {
		of, _ := c.Request.Inputs[i].Shape.Elements() // the request was checked
		n += of
	}
	return n
}

// enter counts the call against its tenant's limits before any of it is read, so that calls beyond the limits
// use no memory.
func enter(c *Call) (err error) {
	if c.Tenant == nil {
		return nil
	}
	if c.Quota, err = c.Tenant.Enter(c.ctx, tenants.Attempts(c.Caller)); err != nil {
		c.refused()
	}
	return err
}

// refused records a call, for explanations and counts, that is refused before its request is known. Its class
// is unknown too, so its band is the tenant's.
func (c *Call) refused() {
	now := c.path.gateway.Now()
	c.Work = c.path.gateway.NextID()
	c.outcome = Outcome{Received: now, Started: now, Tenant: c.Tenant.Name, Band: c.view.Bands[c.Tenant.Band()].Name}
	if v, err := c.path.gateway.Snapshot().Resolve(c.Model, c.Version); err == nil && c.Tenant.MayUse(c.Model) == nil {
		c.outcome.Model = v.Ref.ID()
	}
}

// price reserves the request's predicted use of its tenant's limits until the call ends.
func price(c *Call) error {
	if c.Tenant == nil {
		return nil
	}
	r := c.Request
	return c.Quota.Price(c.ctx, tenants.Demand{
		Cost: c.path.options.Costs.Predict(c.Target.Ref.ID(), c.outcome.Elements, r.BatchSize), Bytes: float64(r.InputBytes()),
	})
}

// settle returns the unused part of the reservation. A cost unit is a millisecond of device time. The cost of a
// request that was abandoned, for example at its deadline or when its client disconnected, is unknown; it is
// charged at least its predicted cost.
func (c *Call) settle(abandoned bool) {
	if c.Tenant == nil {
		return
	}
	cost := float64(c.outcome.Execution.Cost) / float64(time.Millisecond)
	switch {
	case abandoned:
		cost = max(cost, c.Quota.Cost())
	case c.Target != nil:
		c.path.options.Costs.Learn(c.Target.Ref.ID(), c.outcome.Elements, c.outcome.BatchSize, c.Quota.Cost(), cost)
	}
	c.Quota.Settle(cost)
}
