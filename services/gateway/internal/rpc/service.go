package rpc

import (
	"context"
	"slices"
	"sync"

	"google.golang.org/grpc"

	"github.com/nereid-serving/nereid/libs/errs"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/regions"
)

// service implements inference.GRPCInferenceService and takes all services' calls through the gateway's path:
// see [registrar]. Its methods return the project's errors, which the registrar turns into statuses.
type service struct {
	inference.UnimplementedGRPCInferenceServiceServer
	gateway  *core.Gateway
	path     *path.Path
	regions  *regions.Regions // nil if clients share no memory
	clock    Clock
	calls    sync.Pool // of *call
	replies  buffers
	compress bool
}

func newService(gateway *core.Gateway, o Options) *service {
	return &service{
		gateway: gateway, path: path.New(gateway, path.Protocol{Noun: "protocol", HeaderPrefix: restrictedPrefix}, o.Options),
		regions: o.Regions, clock: o.Clock, compress: o.Compress,
	}
}

// description returns the generated service description, in which the handlers of unsupported extensions are
// replaced by a refusal.
func (s *service) description() *grpc.ServiceDesc {
	d := inference.GRPCInferenceService_ServiceDesc
	d.Methods = slices.Clone(d.Methods)
	for i := range d.Methods {
		d.Methods[i].Handler = s.handler(&d.Methods[i])
	}
	return &d
}

func (s *service) handler(m *grpc.MethodDesc) grpc.MethodHandler {
	switch m.MethodName {
	case "ModelInfer", "ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata",
		"ModelConfig", "ModelStatistics", "RepositoryIndex",
		"SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister",
		"CudaSharedMemoryStatus", "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister",
		"RepositoryModelLoad", "RepositoryModelUnload", "LogSettings":
		return m.Handler
	}
	err := errs.New(errs.Unsupported, "%s is not supported by this server", m.MethodName)
	return func(any, context.Context, func(any) error, grpc.UnaryServerInterceptor) (any, error) {
		return nil, err
	}
}

// ServerLive implements the RPC.
func (s *service) ServerLive(context.Context, *inference.ServerLiveRequest) (*inference.ServerLiveResponse, error) {
	return &inference.ServerLiveResponse{Live: s.gateway.Live()}, nil
}

// ServerReady implements the RPC.
func (s *service) ServerReady(context.Context, *inference.ServerReadyRequest) (*inference.ServerReadyResponse, error) {
	return &inference.ServerReadyResponse{Ready: s.gateway.Ready()}, nil
}

// ModelReady implements the RPC. An unknown model is not ready.
func (s *service) ModelReady(_ context.Context, r *inference.ModelReadyRequest) (*inference.ModelReadyResponse, error) {
	ready, err := s.gateway.ModelReady(r.GetName(), r.GetVersion())
	if err != nil {
		return nil, err
	}
	return &inference.ModelReadyResponse{Ready: ready}, nil
}

// ServerMetadata implements the RPC.
func (s *service) ServerMetadata(context.Context, *inference.ServerMetadataRequest) (*inference.ServerMetadataResponse, error) {
	info := s.gateway.Server()
	return &inference.ServerMetadataResponse{Name: info.Name, Version: info.Version, Extensions: info.Extensions}, nil
}

// ModelMetadata implements the RPC.
func (s *service) ModelMetadata(_ context.Context, r *inference.ModelMetadataRequest) (*inference.ModelMetadataResponse, error) {
	m, err := s.gateway.Metadata(r.GetName(), r.GetVersion())
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
	c, err := s.gateway.ModelConfig(r.GetName(), r.GetVersion())
	if err != nil {
		return nil, err
	}
	return &inference.ModelConfigResponse{Config: c.Proto()}, nil
}

// RepositoryIndex implements the RPC.
func (s *service) RepositoryIndex(ctx context.Context, r *inference.RepositoryIndexRequest) (*inference.RepositoryIndexResponse, error) {
	if r.GetRepositoryName() != "" {
		return nil, repositoryNamed()
	}
	var models []*inference.RepositoryIndexResponse_ModelIndex
	caller := path.CallOf(ctx)
	for _, e := range s.gateway.Index(r.GetReady()) {
		if caller.Sees(e.Name) {
			models = append(models, &inference.RepositoryIndexResponse_ModelIndex{Name: e.Name, Version: e.Version, State: e.State, Reason: e.Reason})
		}
	}
	return &inference.RepositoryIndexResponse{Models: models}, nil
}
