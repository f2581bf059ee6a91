package rpc

import (
	"context"

	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// health reports the server's readiness to probes, whichever service they name. As in Triton, only Check is
// implemented.
type health struct {
	grpc_health_v1.UnimplementedHealthServer
	gateway *core.Gateway
}

// Check implements grpc.health.v1.
func (h *health) Check(_ context.Context, _ *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	state := grpc_health_v1.HealthCheckResponse_NOT_SERVING
	if h.gateway.Ready() {
		state = grpc_health_v1.HealthCheckResponse_SERVING
	}
	return &grpc_health_v1.HealthCheckResponse{Status: state}, nil
}
