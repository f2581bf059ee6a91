package rpc

import (
	"context"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/gateway/internal/classify"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc/wire"
)

// traceHeader carries the caller's W3C trace context.
const traceHeader = "traceparent"

// modelInfer handles ModelInfer.
func (s *service) modelInfer(ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
	in := s.takeRequest()
	defer s.putRequest(in)
	if err := decode(in); err != nil {
		return nil, err
	}
	if interceptor == nil {
		return s.inferUnary(ctx, in)
	}
	info := &grpc.UnaryServerInfo{Server: s, FullMethod: inference.GRPCInferenceService_ModelInfer_FullMethodName}
	return interceptor(ctx, in, info, func(ctx context.Context, _ any) (any, error) { return s.inferUnary(ctx, in) })
}

func (s *service) takeRequest() *wire.Request {
	if r, ok := s.requests.Get().(*wire.Request); ok {
		return r
	}
	return new(wire.Request)
}

func (s *service) putRequest(r *wire.Request) {
	r.Reset()
	s.requests.Put(r)
}

func (s *service) inferUnary(ctx context.Context, in *wire.Request) (any, error) {
	if err := s.budget.Take(in.Bytes); err != nil {
		return nil, err
	}
	defer s.budget.Give(in.Bytes)
	v, err := s.engine.Snapshot().Resolve(in.Model, in.Version)
	if err != nil {
		return nil, err
	}
	if v.Config.Decoupled {
		return nil, errs.New(errs.Unsupported, "ModelInfer RPC doesn't support models with decoupled transaction policy").WithModel(in.Model)
	}
	r, classes, err := s.request(ctx, v, in)
	if err != nil {
		return nil, err
	}
	response, err := s.execute(ctx, v, r, classes)
	if err != nil {
		return nil, err
	}
	defer response.Release()
	s.compressed(ctx)
	return s.encodeAnswer(&wire.Response{
		Model: v.Ref.Name, Version: strconv.FormatInt(v.Ref.Version, 10), ID: in.ID,
		Parameters: response.Parameters, Outputs: response.Outputs,
	})
}

// execute has r answered, with the classes of outputs of which they are asked
// for. The caller releases the response.
func (s *service) execute(ctx context.Context, v *core.Version, r *infer.Request, classes []classify.Output) (*infer.Response, error) {
	response, v, err := s.engine.Infer(ctx, v, r)
	if err != nil {
		return nil, err
	}
	if err := classify.Apply(v.Config, classes, response); err != nil {
		response.Release()
		return nil, err
	}
	return response, nil
}

// request makes the request that in describes, and lists the outputs of which
// it asks for classes. It takes the tensors over from in only if it succeeds.
func (s *service) request(ctx context.Context, v *core.Version, in *wire.Request) (*infer.Request, []classify.Output, error) {
	r := s.engine.NewRequest(v)
	r.ID = in.ID
	if deadline, ok := ctx.Deadline(); ok {
		r.Deadline = s.clock.At(deadline)
	}
	if trace := metadata.ValueFromIncomingContext(ctx, traceHeader); len(trace) > 0 {
		r.Trace = trace[0]
	}
	if err := setParameters(in.Parameters, r); err != nil {
		return nil, nil, err
	}
	classes, err := setOutputs(in.Outputs, r)
	if err != nil {
		return nil, nil, err
	}
	for i := range in.Inputs {
		if err := checkInput(&in.Inputs[i]); err != nil {
			return nil, nil, err
		}
	}
	if err := classify.Check(v.Config, classes); err != nil {
		return nil, nil, err
	}
	r.Inputs, err = in.Tensors()
	return r, classes, err
}

// setOutputs puts the outputs that are asked for into r, and lists those of
// which classes are.
func setOutputs(list []wire.Output, r *infer.Request) (classes []classify.Output, err error) {
	if len(list) == 0 {
		return nil, nil
	}
	r.Outputs = make([]infer.Output, len(list))
	for i := range list {
		k, err := readOutput(&list[i])
		if err != nil {
			return nil, err
		}
		if k > 0 {
			classes = append(classes, classify.Output{Name: list[i].Name, Classes: k})
		}
		r.Outputs[i].Name = list[i].Name
	}
	return classes, nil
}
