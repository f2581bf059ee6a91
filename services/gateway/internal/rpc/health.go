package rpc

import (
	"context"

	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// health answers probes with the server's readiness, whichever service they
// name. As in Triton only Check is implemented.
type health struct {
	grpc_health_v1.UnimplementedHealthServer
	engine  Engine
	service *service
}

// Check implements grpc.health.v1.
func (h *health) Check(ctx context.Context, _ *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	if err := h.service.allow(ctx, core.HealthAPI); err != nil {
		return nil, h.service.status(grpc_health_v1.Health_Check_FullMethodName, err)
	}
	state := grpc_health_v1.HealthCheckResponse_NOT_SERVING
	if h.engine.Ready() {
		state = grpc_health_v1.HealthCheckResponse_SERVING
	}
	return &grpc_health_v1.HealthCheckResponse{Status: state}, nil
}
