package rpc

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/requests"
)

// A method that is registered and not listed with an API is refused, and not taken
// for one of another API.
func TestUnlistedMethodsAreRefused(t *testing.T) {
	gateway := core.New(core.ServerInfo{}, core.Deps{Requests: requests.New(1), Clock: mono.New(), Pool: tensor.NewPool(0)})
	s := newService(gateway, Options{Clock: mono.New(), Options: path.Options{
		Restricted: core.Restrictions{core.SharedMemoryAPI: {Header: "key", Value: "secret"}},
	}})
	for _, service := range []string{"inference.GRPCInferenceService", "other.Service"} {
		handler := s.unary(service, "Unlisted", func(any, context.Context, func(any) error, grpc.UnaryServerInterceptor) (any, error) {
			t.Error("the method was called")
			return nil, nil
		})
		if _, err := handler(nil, &ticket{Context: t.Context()}, nil, nil); status.Code(err) != codes.Unimplemented {
			t.Errorf("%s: %v", service, err)
		}
	}
}
