package rpc

import (
	"context"

	"google.golang.org/grpc/health/grpc_health_v1"
)

// health answers probes with the server's readiness, whichever service they
// name. As in Triton only Check is implemented.
type health struct {
	grpc_health_v1.UnimplementedHealthServer
	engine Engine
}

// Check implements grpc.health.v1.
func (h *health) Check(context.Context, *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	state := grpc_health_v1.HealthCheckResponse_NOT_SERVING
	if h.engine.Ready() {
		state = grpc_health_v1.HealthCheckResponse_SERVING
	}
	return &grpc_health_v1.HealthCheckResponse{Status: state}, nil
}
