package rpc

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// restrictedPrefix is before the name of the header that callers of a
// restricted API send.
const restrictedPrefix = "triton-grpc-protocol-"

// apiOf is the API of a method of the inference service.
func apiOf(method string) core.API {
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
	case "TraceSetting":
		return core.TraceAPI
	case "LogSettings":
		return core.LoggingAPI
	}
	if strings.HasPrefix(method, "Repository") {
		return core.RepositoryAPI
	}
	return core.SharedMemoryAPI
}

// restrict keeps callers off a method whose API is restricted, before their
// message is read.
func (s *service) restrict(method string, next grpc.MethodHandler) grpc.MethodHandler {
	api := apiOf(method)
	if _, restricted := s.restricted[api]; !restricted {
		return next
	}
	return func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		if err := s.allow(ctx, api); err != nil {
			return nil, err
		}
		return next(srv, ctx, decode, interceptor)
	}
}

// allow refuses a caller without the header that the API needs.
func (s *service) allow(ctx context.Context, api core.API) error {
	secret, restricted := s.restricted[api]
	if !restricted {
		return nil
	}
	header := restrictedPrefix + secret.Header
	if slices.ContainsFunc(metadata.ValueFromIncomingContext(ctx, header), secret.Matches) {
		return nil
	}
	return errs.New(errs.APIRestricted, "This protocol is restricted, expecting header '%s'", header)
}
