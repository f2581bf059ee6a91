package rpc

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/nereid-serving/nereid/libs/errs"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// service implements inference.GRPCInferenceService. Its methods return the
// project's errors; description wraps each to make statuses of them.
type service struct {
	inference.UnimplementedGRPCInferenceServiceServer
	engine     Engine
	clock      Clock
	budget     *core.Budget
	log        func(string, error)
	requests   sync.Pool // of *wire.Request, empty
	replies    buffers
	restricted core.Restrictions
	compress   bool
	answered   func(time.Duration)
	failed     func(errs.Reason)
}

func newService(engine Engine, o Options) *service {
	s := &service{
		engine: engine, clock: o.Clock, budget: o.Budget, log: o.Log, restricted: o.Restricted, compress: o.Compress,
		answered: o.Answered, failed: o.Failed,
	}
	if s.answered == nil {
		s.answered = func(time.Duration) {}
	}
	if s.failed == nil {
		s.failed = func(errs.Reason) {}
	}
	return s
}

// description is the generated one with the handlers of inference replaced by
// those that work without the generated types, and with those of extensions
// that this server lacks replaced by a refusal.
func (s *service) description() *grpc.ServiceDesc {
	d := inference.GRPCInferenceService_ServiceDesc
	d.Methods = slices.Clone(d.Methods)
	for i := range d.Methods {
		m := &d.Methods[i]
		m.Handler = s.wrap("/"+d.ServiceName+"/"+m.MethodName, s.restrict(m.MethodName, s.handler(m)))
	}
	d.Streams = slices.Clone(d.Streams)
	for i := range d.Streams {
		d.Streams[i].Handler = s.stream // ModelStreamInfer is the only one
	}
	return &d
}

func (s *service) handler(m *grpc.MethodDesc) grpc.MethodHandler {
	switch m.MethodName {
	case "ModelInfer":
		return func(_ any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			return s.modelInfer(ctx, decode, interceptor)
		}
	case "ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata",
		"ModelConfig", "ModelStatistics", "RepositoryIndex",
		"SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister",
		"CudaSharedMemoryStatus", "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister":
		return m.Handler
	case "RepositoryModelLoad", "RepositoryModelUnload":
		return counts(m.Handler)
	}
	err := errs.New(errs.Unsupported, "%s is not supported by this server", m.MethodName)
	return func(any, context.Context, func(any) error, grpc.UnaryServerInterceptor) (any, error) {
		return nil, err
	}
}

// wrap makes statuses of a handler's errors, outside the interceptors, which
// see the errors themselves.
func (s *service) wrap(method string, next grpc.MethodHandler) grpc.MethodHandler {
	return func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		reply, err := next(srv, ctx, decode, interceptor)
		if err != nil {
			return nil, s.status(method, err)
		}
		return reply, nil
	}
}

// ServerLive implements the RPC.
func (s *service) ServerLive(context.Context, *inference.ServerLiveRequest) (*inference.ServerLiveResponse, error) {
	return &inference.ServerLiveResponse{Live: s.engine.Live()}, nil
}

// ServerReady implements the RPC.
func (s *service) ServerReady(context.Context, *inference.ServerReadyRequest) (*inference.ServerReadyResponse, error) {
	return &inference.ServerReadyResponse{Ready: s.engine.Ready()}, nil
}

// ModelReady implements the RPC. An unknown model is an error, not a false.
func (s *service) ModelReady(_ context.Context, r *inference.ModelReadyRequest) (*inference.ModelReadyResponse, error) {
	ready, err := s.engine.ModelReady(r.GetName(), r.GetVersion())
	if err != nil {
		return nil, err
	}
	return &inference.ModelReadyResponse{Ready: ready}, nil
}

// ServerMetadata implements the RPC.
func (s *service) ServerMetadata(context.Context, *inference.ServerMetadataRequest) (*inference.ServerMetadataResponse, error) {
	info := s.engine.Server()
	return &inference.ServerMetadataResponse{Name: info.Name, Version: info.Version, Extensions: info.Extensions}, nil
}

// ModelMetadata implements the RPC.
func (s *service) ModelMetadata(_ context.Context, r *inference.ModelMetadataRequest) (*inference.ModelMetadataResponse, error) {
	m, err := s.engine.Metadata(r.GetName(), r.GetVersion())
	if err != nil {
		return nil, err
	}
	return &inference.ModelMetadataResponse{
		Name: m.Name, Versions: m.Versions, Platform: m.Platform,
		Inputs: tensorMetadata(m.Inputs), Outputs: tensorMetadata(m.Outputs),
	}, nil
}

func tensorMetadata(list []core.TensorMetadata) []*inference.ModelMetadataResponse_TensorMetadata {
	out := make([]*inference.ModelMetadataResponse_TensorMetadata, len(list))
	for i, t := range list {
		out[i] = &inference.ModelMetadataResponse_TensorMetadata{Name: t.Name, Datatype: t.Datatype, Shape: t.Shape}
	}
	return out
}

// ModelConfig implements the RPC.
func (s *service) ModelConfig(_ context.Context, r *inference.ModelConfigRequest) (*inference.ModelConfigResponse, error) {
	c, err := s.engine.ModelConfig(r.GetName(), r.GetVersion())
	if err != nil {
		return nil, err
	}
	return &inference.ModelConfigResponse{Config: c.Proto()}, nil
}

// RepositoryIndex implements the RPC.
func (s *service) RepositoryIndex(_ context.Context, r *inference.RepositoryIndexRequest) (*inference.RepositoryIndexResponse, error) {
	if r.GetRepositoryName() != "" {
		return nil, repositoryNamed()
	}
	entries := s.engine.Index(r.GetReady())
	models := make([]*inference.RepositoryIndexResponse_ModelIndex, len(entries))
	for i, e := range entries {
		models[i] = &inference.RepositoryIndexResponse_ModelIndex{Name: e.Name, Version: e.Version, State: e.State, Reason: e.Reason}
	}
	return &inference.RepositoryIndexResponse{Models: models}, nil
}
