package rpc_test

import (
	"context"
	"io"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc"
)

// calls is one call of each API.
func (s *server) calls() map[core.API]func(context.Context) error {
	return map[core.API]func(context.Context) error{
		core.HealthAPI: func(ctx context.Context) error {
			_, err := grpc_health_v1.NewHealthClient(s.conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
			return err
		},
		core.MetadataAPI: func(ctx context.Context) error {
			_, err := s.client.ServerMetadata(ctx, &inference.ServerMetadataRequest{})
			return err
		},
		core.InferenceAPI: func(ctx context.Context) error {
			_, err := s.client.ModelInfer(ctx, addSub(1))
			return err
		},
		core.ModelConfigAPI: func(ctx context.Context) error {
			_, err := s.client.ModelConfig(ctx, &inference.ModelConfigRequest{Name: "none"})
			return err
		},
		core.RepositoryAPI: func(ctx context.Context) error {
			_, err := s.client.RepositoryModelUnload(ctx, &inference.RepositoryModelUnloadRequest{ModelName: "none"})
			return err
		},
		core.StatisticsAPI: func(ctx context.Context) error {
			_, err := s.client.ModelStatistics(ctx, &inference.ModelStatisticsRequest{})
			return err
		},
		core.SharedMemoryAPI: func(ctx context.Context) error {
			_, err := s.client.SystemSharedMemoryStatus(ctx, &inference.SystemSharedMemoryStatusRequest{})
			return err
		},
		core.TraceAPI: func(ctx context.Context) error {
			_, err := s.client.TraceSetting(ctx, &inference.TraceSettingRequest{})
			return err
		},
		core.LoggingAPI: func(ctx context.Context) error {
			_, err := s.client.LogSettings(ctx, &inference.LogSettingsRequest{})
			return err
		},
	}
}

func TestRestrictedAPIsNeedTheirHeader(t *testing.T) {
	const want = "This protocol is restricted, expecting header 'triton-grpc-protocol-admin'"
	for _, restricted := range core.APIs() {
		t.Run(string(restricted), func(t *testing.T) {
			s := serveWith(t, rpc.Options{Options: path.Options{Restricted: core.Restrictions{restricted: {Header: "admin", Value: "secret"}}}})
			for api, call := range s.calls() {
				for _, value := range []string{"", "other", "secret"} {
					ctx := metadata.AppendToOutgoingContext(t.Context(), "triton-grpc-protocol-admin", value)
					err := status.Convert(call(ctx))
					refused := err.Code() == codes.Unavailable && err.Message() == want
					if refused != (api == restricted && value != "secret") {
						t.Errorf("%s with %q: %v", api, value, err.Err())
					}
				}
			}
		})
	}
}

func TestRestrictedStreamsNeedTheHeader(t *testing.T) {
	s := serveWith(t, rpc.Options{Options: path.Options{Restricted: core.Restrictions{core.InferenceAPI: {Header: "k", Value: "secret"}}}})
	for value, want := range map[string]codes.Code{"secret": codes.OK, "other": codes.Unavailable} {
		stream, err := s.client.ModelStreamInfer(metadata.AppendToOutgoingContext(t.Context(), "triton-grpc-protocol-k", value))
		if err != nil {
			t.Fatal(err)
		}
		_ = stream.CloseSend()
		if _, err = stream.Recv(); err == io.EOF { //nolint:errorlint // as gRPC gives it
			err = nil
		}
		if status.Code(err) != want {
			t.Errorf("with %q: %v, want %s", value, err, want)
		}
	}
}
