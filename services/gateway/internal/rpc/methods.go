package rpc

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc/transport"
)

// restrictedPrefix precedes the name of the header that callers of a restricted API send.
const restrictedPrefix = "triton-grpc-protocol-"

// apiOf returns the API of a method. It is empty for an unlisted method, which is refused to everyone.
func apiOf(service, method string) core.API {
	switch service {
	case grpc_health_v1.Health_ServiceDesc.ServiceName:
		return core.HealthAPI
	case reflectionv1.ServerReflection_ServiceDesc.ServiceName, reflectionv1alpha.ServerReflection_ServiceDesc.ServiceName:
		return core.MetadataAPI
	case nereidv1.ClusterService_ServiceDesc.ServiceName:
		return core.RepositoryAPI
	case inference.GRPCInferenceService_ServiceDesc.ServiceName:
	default:
		return ""
	}
	switch method {
	case "ServerLive", "ServerReady", "ModelReady":
		return core.HealthAPI
	case "ServerMetadata", "ModelMetadata":
		return core.MetadataAPI
	case "ModelInfer", "ModelStreamInfer":
		return core.InferenceAPI
	case "ModelConfig":
		return core.ModelConfigAPI
	case "ModelStatistics":
		return core.StatisticsAPI
	case "RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload":
		return core.RepositoryAPI
	case "SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister",
		"CudaSharedMemoryStatus", "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister":
		return core.SharedMemoryAPI
	case "TraceSetting":
		return core.TraceAPI
	case "LogSettings":
		return core.LoggingAPI
	}
	return ""
}

// registrar registers services so that every method takes the stages of the path.
type registrar struct {
	*grpc.Server
	service *service
}

// RegisterService implements grpc.ServiceRegistrar.
func (r registrar) RegisterService(d *grpc.ServiceDesc, implementation any) {
	guarded := *d
	guarded.Methods, guarded.Streams = slices.Clone(d.Methods), slices.Clone(d.Streams)
	for i := range guarded.Methods {
		m := &guarded.Methods[i]
		m.Handler = acceptsCompression(r.service.unary(d.ServiceName, m.MethodName, m.Handler))
	}
	for i := range guarded.Streams {
		m := &guarded.Streams[i]
		m.Handler = streamAcceptsCompression(r.service.streamed(d.ServiceName, m.StreamName, m.Handler))
	}
	r.Server.RegisterService(&guarded, implementation)
}

// unary makes a method take the stages of every call before its message is read. Inferences do so themselves.
func (s *service) unary(service, method string, next grpc.MethodHandler) grpc.MethodHandler {
	api, full := apiOf(service, method), "/"+service+"/"+method
	if api == core.InferenceAPI {
		return func(_ any, ctx context.Context, receive func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			return s.modelInfer(ctx, receive, interceptor)
		}
	}
	return func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (reply any, err error) {
		c := path.Call{API: api, Method: method, Caller: incoming{ctx}, Client: clientOf(ctx)}
		err = s.path.Do(ctx, &c, func() (err error) {
			if reply, err = next(srv, path.WithCall(ctx, &c), permitted(&c, &ticketOf(ctx).ledger, decode), interceptor); err == nil {
				reply, err = s.reply(ctx, reply)
			}
			return err
		})
		if err != nil {
			return nil, s.status(full, err)
		}
		return reply, nil
	}
}

// streamed does the same for a stream.
func (s *service) streamed(service, method string, next grpc.StreamHandler) grpc.StreamHandler {
	api, full := apiOf(service, method), "/"+service+"/"+method
	if api == core.InferenceAPI {
		return s.streamInfer
	}
	return func(srv any, stream grpc.ServerStream) error {
		c := path.Call{API: api, Method: method, Caller: incoming{stream.Context()}, Client: clientOf(stream.Context())}
		return s.status(full, s.path.Do(stream.Context(), &c, func() error { return next(srv, &countedStream{ServerStream: stream, service: s, call: &c}) }))
	}
}

// incoming is the caller of a call that is not an inference.
type incoming struct{ ctx context.Context }

// Header implements path.Caller.
func (c incoming) Header(name string) []string { return metadata.ValueFromIncomingContext(c.ctx, name) }

// Names implements path.Caller.
func (c incoming) Names() []string { return certificateNames(c.ctx) }

// certificateNames returns the names in the client's certificate, if its connection has one.
func certificateNames(ctx context.Context) []string {
	secured, ok := connectionOf(ctx).AuthInfo.(credentials.TLSInfo)
	if !ok {
		return nil
	}
	return path.CertificateNames(secured.State.PeerCertificates)
}

// permitted reads a message and refuses a tenant that may not use the model named in it.
func permitted(c *path.Call, ledger *transport.Stream, decode func(any) error) func(any) error {
	return func(m any) error {
		if err := (&received{message: m, account: &c.Account, ledger: ledger}).from(c.Context(), decode, true); err != nil {
			return err
		}
		switch named := m.(type) {
		case interface{ GetName() string }:
			if c.API != core.SharedMemoryAPI { // there the name is a region's
				c.Model = named.GetName()
			}
		case interface{ GetModelName() string }:
			c.Model = named.GetModelName()
		}
		return c.Permit()
	}
}
