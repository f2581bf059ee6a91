// Package calls takes the calls that models make to other models through the gateway's stages, as transports do
// with the calls of clients. A calling model was itself called by an authorized caller, so its calls need no
// further authorization.
package calls

import (
	"context"
	"fmt"
	"slices"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
)

// method identifies these calls in logs.
const method = "call of a model"

// Caller is an [infer.Caller] for the models of one gateway.
type Caller struct {
	ctx  context.Context //nolint:containedctx // of the gateway, with which all calls end
	path *path.Path
}

// New returns the caller of a gateway. Its calls are canceled when ctx is done.
func New(ctx context.Context, g *core.Gateway, o path.Options) *Caller {
	o.Restricted, o.Tenants = nil, nil
	return &Caller{ctx: ctx, path: path.New(g, path.Protocol{Noun: "call"}, o)}
}

// call is one call in progress. It is its own transport.
type call struct {
	path.Call
	of      *infer.Call
	receive func(*infer.Response)
}

// Call makes a call: see [infer.Caller]. It runs the stages up to the last in the caller's goroutine, which
// keeps the order of its calls, and the last one in a separate goroutine, which ends with the call.
func (s *Caller) Call(of *infer.Call, receive func(*infer.Response)) (cancel func()) {
	ctx, cancel := context.WithCancel(s.ctx)
	c := &call{of: of, receive: receive}
	c.API, c.Method, c.Model, c.Version, c.Trace = core.InferenceAPI, method, of.Model, of.Version, of.Trace
	c.Caller, c.Body, c.Sink = c, c, c
	if err := s.path.Start(ctx, &c.Call); err != nil {
		cancel()
		of.Release()
		s.fail(c, refusal(of.Model, err))
		return cancel
	}
	go func() {
		defer cancel()
		if err := s.path.Finish(&c.Call); err != nil {
			s.fail(c, err)
		}
	}()
	return cancel
}

// fail ends a call with an error.
func (s *Caller) fail(c *call, err error) {
	c.receive(&infer.Response{Final: true, Err: s.path.Visible(method, err)})
}

// refusal returns the error of a call that was not submitted, with Triton's text.
func refusal(model string, err error) error {
	e := *errs.Visible(err)
	switch e.Reason {
	case errs.ModelNotFound, errs.ModelNotReady:
		e.Msg = fmt.Sprintf("Failed for execute the inference request. Model '%s' is not ready.", model)
	}
	e.Msg, e.Err = fmt.Sprintf("Model %s - Error when running inference: %s", model, e.Msg), err
	return &e
}

// Header implements path.Caller: a model sends none.
func (*call) Header(string) []string { return nil }

// Names implements path.Caller: a model has no certificate.
func (*call) Names() []string { return nil }

// Receive implements path.Body: the call names its model.
func (*call) Receive() error { return nil }

// Decode implements path.Body. The inputs are passed by reference and are charged where they come from.
func (c *call) Decode() error {
	if c.of.Single && c.Target.Config.Decoupled {
		return errs.New(errs.Unsupported, "Model %s is using the decoupled. The current BLS request call doesn't support models using the "+
			"decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls for decoupled models.'", c.Model).
			WithModel(c.Model)
	}
	of, r := c.of, c.Request
	r.ID, r.Parameters, r.Sequence, r.Priority, r.Timeout = of.ID, of.Parameters, of.Sequence, of.Priority, of.Timeout
	r.Parent, r.Tenant, r.CostClass, r.Share = of.Parent, of.Tenant, of.CostClass, of.Share
	for _, out := range of.Outputs { // a set, as in Triton
		if !slices.Contains(r.Outputs, out) {
			r.Outputs = append(r.Outputs, out)
		}
	}
	r.Inputs, of.Inputs = of.Inputs, nil
	if of.Deadline != 0 {
		c.SetTimeout(max(of.Deadline.Sub(r.Received), 0))
	}
	c.EmptyFinal = true
	return nil
}

// Send implements path.Sink. The caller gets references of its own, so that the response counts as unread until
// the caller has them.
func (c *call) Send(r *infer.Response) error {
	given := &infer.Response{Work: r.Work, Index: r.Index, Final: r.Final, Parameters: r.Parameters, Outputs: slices.Clone(r.Outputs)}
	for i := range given.Outputs {
		given.Outputs[i].Data = given.Outputs[i].Data.Retain()
	}
	c.receive(given)
	return nil
}
