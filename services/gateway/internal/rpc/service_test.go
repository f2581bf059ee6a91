package rpc_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/nereid-serving/nereid/libs/infer"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

func TestServerAndModelCalls(t *testing.T) {
	s, ctx := serve(t), t.Context()
	io := func(names ...string) (list []*inference.ModelMetadataResponse_TensorMetadata) {
		for _, name := range names {
			list = append(list, &inference.ModelMetadataResponse_TensorMetadata{Name: name, Datatype: "INT32", Shape: []int64{-1, 16}})
		}
		return list
	}
	tests := map[string]struct {
		call func() (proto.Message, error)
		want proto.Message
	}{
		"ServerLive": {
			func() (proto.Message, error) { return s.client.ServerLive(ctx, &inference.ServerLiveRequest{}) },
			&inference.ServerLiveResponse{Live: true},
		},
		"ServerReady": {
			func() (proto.Message, error) { return s.client.ServerReady(ctx, &inference.ServerReadyRequest{}) },
			&inference.ServerReadyResponse{Ready: true},
		},
		"ModelReady": {
			func() (proto.Message, error) {
				return s.client.ModelReady(ctx, &inference.ModelReadyRequest{Name: "add_sub"})
			},
			&inference.ModelReadyResponse{Ready: true},
		},
		"ModelReady of a version that is not": {
			func() (proto.Message, error) {
				return s.client.ModelReady(ctx, &inference.ModelReadyRequest{Name: "add_sub", Version: "2"})
			},
			&inference.ModelReadyResponse{},
		},
		"ModelReady of an unknown model": {
			func() (proto.Message, error) {
				return s.client.ModelReady(ctx, &inference.ModelReadyRequest{Name: "unknown"})
			},
			&inference.ModelReadyResponse{},
		},
		"ServerMetadata": {
			func() (proto.Message, error) {
				return s.client.ServerMetadata(ctx, &inference.ServerMetadataRequest{})
			},
			&inference.ServerMetadataResponse{Name: "nereid", Version: "1.2.3", Extensions: []string{"classification"}},
		},
		"ModelMetadata": {
			func() (proto.Message, error) {
				return s.client.ModelMetadata(ctx, &inference.ModelMetadataRequest{Name: "add_sub"})
			},
			&inference.ModelMetadataResponse{
				Name: "add_sub", Versions: []string{"1"}, Platform: "onnxruntime_onnx",
				Inputs: io("INPUT0", "INPUT1"), Outputs: io("OUTPUT0", "OUTPUT1"),
			},
		},
		"RepositoryIndex": {
			func() (proto.Message, error) {
				return s.client.RepositoryIndex(ctx, &inference.RepositoryIndexRequest{})
			},
			&inference.RepositoryIndexResponse{Models: []*inference.RepositoryIndexResponse_ModelIndex{
				{Name: "add_sub", Version: "1", State: "READY"},
				{Name: "add_sub", Version: "2", State: "UNAVAILABLE", Reason: "unloaded"},
				{Name: "tokens", Version: "1", State: "READY"},
			}},
		},
		"RepositoryIndex of what is ready": {
			func() (proto.Message, error) {
				return s.client.RepositoryIndex(ctx, &inference.RepositoryIndexRequest{Ready: true})
			},
			&inference.RepositoryIndexResponse{Models: []*inference.RepositoryIndexResponse_ModelIndex{
				{Name: "add_sub", Version: "1", State: "READY"}, {Name: "tokens", Version: "1", State: "READY"},
			}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := tt.call()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestHealthFollowsReadiness(t *testing.T) {
	s := serve(t)
	health := grpc_health_v1.NewHealthClient(s.conn)
	check := func(want grpc_health_v1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		got, err := health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "any"})
		if err != nil || got.Status != want {
			t.Errorf("health is %v, %v, want %v", got, err, want)
		}
	}
	check(grpc_health_v1.HealthCheckResponse_SERVING)
	s.gateway.Update(core.NewSnapshot(2, true, []*core.Model{{Name: "m", Versions: []*core.Version{{Ref: infer.ModelRef{Name: "m", Version: 1}, State: infer.Unavailable}}}}))
	check(grpc_health_v1.HealthCheckResponse_NOT_SERVING)
}

func TestCallsThatAreNotSupportedSaySo(t *testing.T) {
	s, ctx := serve(t), t.Context()
	calls := map[string]func() error{
		"TraceSetting": func() error { _, err := s.client.TraceSetting(ctx, &inference.TraceSettingRequest{}); return err },
	}
	for name, call := range calls {
		err := call()
		if want := name + " is not supported by this server"; status.Code(err) != codes.Unimplemented || status.Convert(err).Message() != want {
			t.Errorf("%s: %v, want UNIMPLEMENTED %q", name, err, want)
		}
	}
}

// The request and its parameters as the scheduler sees them.
func TestInferFillsTheRequest(t *testing.T) {
	s := serve(t)
	m := addSub(1)
	choice := func(v any) *inference.InferParameter {
		switch v := v.(type) {
		case int:
			return &inference.InferParameter{ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: int64(v)}}
		case uint64:
			return &inference.InferParameter{ParameterChoice: &inference.InferParameter_Uint64Param{Uint64Param: v}}
		case string:
			return &inference.InferParameter{ParameterChoice: &inference.InferParameter_StringParam{StringParam: v}}
		case float64:
			return &inference.InferParameter{ParameterChoice: &inference.InferParameter_DoubleParam{DoubleParam: v}}
		}
		return &inference.InferParameter{ParameterChoice: &inference.InferParameter_BoolParam{BoolParam: v.(bool)}}
	}
	m.Parameters = map[string]*inference.InferParameter{
		"sequence_id": choice("chat"), "sequence_start": choice(true), "sequence_end": choice(true),
		"priority": choice(uint64(3)), "timeout": choice(1500), "triton_enable_empty_final_response": choice(true),
		"temperature": choice(0.5),
	}
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	if _, err := s.client.ModelInfer(metadata.AppendToOutgoingContext(t.Context(), "traceparent", trace), m); err != nil {
		t.Fatal(err)
	}
	got := <-s.models.submitted
	if got.ID != "r1" || got.Priority != 3 || got.Timeout.Microseconds() != 1500 || got.BatchSize != 1 || got.Deadline != 0 || got.Trace != trace {
		t.Errorf("request is %+v", got)
	}
	if want := (infer.Sequence{Key: "chat", Start: true, End: true}); got.Sequence != want {
		t.Errorf("sequence is %+v, want %+v", got.Sequence, want)
	}
	if diff := cmp.Diff([]infer.Parameter{{Key: "temperature", Value: 0.5}}, got.Parameters); diff != "" {
		t.Errorf("custom parameters (-want +got):\n%s", diff)
	}
}
