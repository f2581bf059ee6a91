package rpc

import (
	"context"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"

	"github.com/nereid-serving/nereid/libs/infer"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/gateway/internal/classify"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/regions"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc/wire"
)

// traceHeader carries the caller's W3C trace context.
const traceHeader = "traceparent"

// call is one inference, of ModelInfer or of a stream. Calls are reused for the memory that they hold.
type call struct {
	path.Call
	service  *service
	in       wire.Request
	received received        // wraps in and the call's account
	receive  func(any) error // of ModelInfer; a stream has already received in
	stream   *stream         // nil for ModelInfer
	ticket   *ticket         // of ModelInfer
	item     wire.StreamItem
	message  mem.BufferSlice // the response of ModelInfer
	decoded  bool
	err      error // of a call of a stream, before its response
}

func (s *service) takeCall() *call {
	if c, ok := s.calls.Get().(*call); ok {
		return c
	}
	c := &call{service: s}
	c.API, c.Caller, c.Body, c.Sink = core.InferenceAPI, c, c, c
	c.Headers = c.eachHeader
	c.received = received{message: &c.in, account: &c.Account}
	return c
}

func (s *service) putCall(c *call) {
	c.in.Reset()
	c.Account.Close()
	c.Received = false
	c.received.ctx, c.received.ledger, c.Client = nil, nil, nil
	c.receive, c.stream, c.ticket, c.message, c.item, c.decoded, c.err = nil, nil, nil, nil, wire.StreamItem{}, false, nil
	s.calls.Put(c)
}

// modelInfer handles ModelInfer.
func (s *service) modelInfer(ctx context.Context, receive func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
	const method = inference.GRPCInferenceService_ModelInfer_FullMethodName
	c := s.takeCall()
	defer s.putCall(c)
	c.Method, c.Single, c.receive = method, "ModelInfer RPC", receive
	c.ticket = ticketOf(ctx)
	c.received.ledger, c.Client = &c.ticket.ledger, &c.ticket.ledger
	defer c.ticket.leave()
	if interceptor == nil {
		reply, err := s.infer(ctx, c)
		return reply, s.status(method, err)
	}
	info := &grpc.UnaryServerInfo{Server: s, FullMethod: method}
	reply, err := interceptor(ctx, &c.in, info, func(ctx context.Context, _ any) (any, error) { return s.infer(ctx, c) })
	return reply, s.status(method, err)
}

// infer runs a call of ModelInfer.
func (s *service) infer(ctx context.Context, c *call) (any, error) {
	err := s.path.Start(ctx, &c.Call)
	c.ticket.leave()
	if err == nil {
		err = s.path.Finish(&c.Call)
	}
	if err != nil {
		return nil, err
	}
	return c.message, nil
}

// Header implements path.Caller.
func (c *call) Header(name string) []string {
	return metadata.ValueFromIncomingContext(c.Context(), name)
}

func (c *call) eachHeader(each func(name string, values []string)) {
	md, _ := metadata.FromIncomingContext(c.Context())
	for name, values := range md {
		each(name, values)
	}
}

// Names implements path.Caller.
func (c *call) Names() []string { return certificateNames(c.Context()) }

// Receive implements path.Body.
func (c *call) Receive() error {
	if c.receive != nil {
		if err := c.received.from(c.Context(), c.receive, true); err != nil {
			return err
		}
	} else if err := c.received.refusal; err != nil {
		return err
	}
	c.Model, c.Version = c.in.Model, c.in.Version
	if c.ticket == nil {
		return nil
	}
	if !inSequence(c.in.Parameters) {
		c.ticket.leave()
		return nil
	}
	return c.ticket.wait(messageTimeout) // before the request gets its number
}

// Decode implements path.Body. It takes the tensors over from the message only if it succeeds.
func (c *call) Decode() error {
	in, r, ctx := &c.in, c.Request, c.Context()
	r.ID = in.ID
	if deadline, ok := ctx.Deadline(); ok {
		r.Deadline = c.service.clock.At(deadline)
	}
	if trace := c.Header(traceHeader); len(trace) > 0 {
		r.Trace = trace[0]
	}
	if err := setParameters(in.Parameters, r, &c.EmptyFinal); err != nil {
		return err
	}
	if err := c.setOutputs(in.Outputs); err != nil {
		return err
	}
	for i := range in.Inputs {
		of, shared, err := sharedInput(&in.Inputs[i], in.Model)
		if err != nil {
			return err
		}
		if shared {
			in.Inputs[i].Shared = true
			c.Shared.Inputs = append(c.Shared.Inputs, regions.Input{Index: i, Range: of})
		}
	}
	var err error
	r.Inputs, err = in.Tensors()
	c.decoded = err == nil
	return err
}

// Send implements path.Sink.
func (c *call) Send(p *infer.Response) (err error) {
	v := c.Served()
	c.item.Response = wire.Response{
		Model: v.Ref.Name, Version: strconv.FormatInt(v.Ref.Version, 10), ID: c.in.ID, Parameters: p.Parameters, Outputs: p.Outputs,
	}
	if c.stream != nil {
		return c.stream.send(c, p.Final)
	}
	c.service.compressed(c.Context())
	c.message, err = c.encode(c.Context(), &c.item.Response)
	return err
}

// setOutputs sets the requested outputs, and those that are to be classified.
func (c *call) setOutputs(list []wire.Output) error {
	if len(list) == 0 {
		return nil
	}
	outputs := make([]infer.Output, len(list))
	for i := range list {
		k, to, shared, err := readOutput(&list[i])
		if err != nil {
			return err
		}
		if shared {
			c.Shared.Outputs = append(c.Shared.Outputs, regions.Output{Name: list[i].Name, Range: to})
		}
		if k > 0 {
			c.Classes = append(c.Classes, classify.Output{Name: list[i].Name, Classes: k})
		}
		outputs[i].Name = list[i].Name
	}
	c.Request.Outputs = outputs
	return nil
}
