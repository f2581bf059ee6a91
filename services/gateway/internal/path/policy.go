package path

import (
	"math/rand/v2"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/policy"
	"github.com/nereid-serving/nereid/services/gateway/internal/tenants"
)

// Permit refuses a tenant that may not use the model which the call names, or that may
// not use every model where the call is about all of them.
func (c *Call) Permit() error {
	switch {
	case c.Tenant == nil:
		return nil
	case c.Model != "":
		return c.Tenant.Refuse(c.Tenant.MayUse(c.Model))
	case c.AllModels && c.Tenant.Models() != nil:
		return c.Tenant.Refuse(errs.New(errs.TenantForbidden, "tenant '%s' may not use every model: name one", c.Tenant.Name))
	}
	return nil
}

// route has the policy say which model and version the request goes to.
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

// classifyRequest has the policy say what the request counts as, and gives it the deadline
// that its client has not stated. Under a policy Triton's parameter timeout is one.
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

// quota takes what the request is expected to use from its tenant's limits, until the
// end of the call.
func quota(c *Call) (err error) {
	if c.Tenant == nil {
		return nil
	}
	r := c.Request
	c.Quota, err = c.Tenant.Reserve(c.ctx, tenants.Demand{
		Cost: c.path.options.Costs.Predict(c.Target.Ref.ID(), c.outcome.Elements, r.BatchSize), Bytes: float64(r.InputBytes()), Retry: tenants.Attempts(c.Caller),
	})
	return err
}

// settle gives back what of the reservation the request has not cost. A cost unit is a
// millisecond of device time.
func (c *Call) settle() {
	if c.Tenant == nil {
		return
	}
	cost := float64(c.outcome.Execution.Cost) / float64(time.Millisecond)
	if c.Target != nil {
		c.path.options.Costs.Learn(c.Target.Ref.ID(), c.outcome.Elements, c.outcome.BatchSize, c.Quota.Cost(), cost)
	}
	c.Quota.Settle(cost)
}
