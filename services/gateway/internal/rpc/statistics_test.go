package rpc_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// statistics are different numbers in every place.
func statistics() infer.Statistics {
	tally := func(count uint64, ns time.Duration) infer.Tally { return infer.Tally{Count: count, Time: ns} }
	return infer.Statistics{
		LastInference: time.UnixMilli(1_700_000_000_123),
		Inferences:    12, Executions: 2,
		Success: tally(6, 11), Fail: tally(1, 12), Queue: tally(6, 13), Input: tally(5, 14), Infer: tally(5, 15), Output: tally(5, 16),
		CacheHit: tally(1, 17), CacheMiss: tally(5, 18),
		Batches: []infer.BatchStatistics{{Size: 4, Input: tally(1, 21), Infer: tally(2, 22), Output: tally(3, 23)}},
		Responses: []infer.ResponseStatistics{
			{Infer: tally(1, 31), Output: tally(2, 32), Success: tally(3, 33), Fail: tally(4, 34), Empty: tally(5, 35), Cancel: tally(6, 36)}, {},
		},
	}
}

func TestModelStatistics(t *testing.T) {
	s := serve(t)
	tally := func(count, ns uint64) *inference.StatisticDuration {
		return &inference.StatisticDuration{Count: count, Ns: ns}
	}
	none := tally(0, 0)
	run := &inference.ModelStatistics{
		Name: "add_sub", Version: "1", LastInference: 1_700_000_000_123, InferenceCount: 12, ExecutionCount: 2,
		InferenceStats: &inference.InferStatistics{
			Success: tally(6, 11), Fail: tally(1, 12), Queue: tally(6, 13),
			ComputeInput: tally(5, 14), ComputeInfer: tally(5, 15), ComputeOutput: tally(5, 16),
			CacheHit: tally(1, 17), CacheMiss: tally(5, 18),
		},
		BatchStats: []*inference.InferBatchStatistics{
			{BatchSize: 4, ComputeInput: tally(1, 21), ComputeInfer: tally(2, 22), ComputeOutput: tally(3, 23)},
		},
		ResponseStats: map[string]*inference.InferResponseStatistics{
			"0": {
				ComputeInfer: tally(1, 31), ComputeOutput: tally(2, 32), Success: tally(3, 33), Fail: tally(4, 34), EmptyResponse: tally(5, 35), Cancel: tally(6, 36),
			},
			"1": {ComputeInfer: none, ComputeOutput: none, Success: none, Fail: none, EmptyResponse: none, Cancel: none},
		},
	}
	idle := &inference.ModelStatistics{Name: "tokens", Version: "1", InferenceStats: &inference.InferStatistics{
		Success: none, Fail: none, Queue: none, ComputeInput: none, ComputeInfer: none, ComputeOutput: none, CacheHit: none, CacheMiss: none,
	}}
	for name, tt := range map[string]struct {
		request *inference.ModelStatisticsRequest
		want    []*inference.ModelStatistics
	}{
		"of all models": {&inference.ModelStatisticsRequest{}, []*inference.ModelStatistics{run, idle}},
		"of a model":    {&inference.ModelStatisticsRequest{Name: "add_sub"}, []*inference.ModelStatistics{run}},
		"of a version":  {&inference.ModelStatisticsRequest{Name: "tokens", Version: "1"}, []*inference.ModelStatistics{idle}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := s.client.ModelStatistics(t.Context(), tt.request)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got.GetModelStats(), protocmp.Transform()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	_, err := s.client.ModelStatistics(t.Context(), &inference.ModelStatisticsRequest{Name: "add_sub", Version: "2"})
	if want := "requested model version is not available for model 'add_sub'"; status.Code(err) != codes.InvalidArgument || status.Convert(err).Message() != want {
		t.Errorf("of a version that is not ready: %v, want INVALID_ARGUMENT %q", err, want)
	}
}

func TestModelConfig(t *testing.T) {
	s := serve(t)
	source := &inference.ModelConfig{
		Name: "m", Backend: "onnxruntime", MaxBatchSize: 4,
		Input:  []*inference.ModelInput{{Name: "x", DataType: inference.DataType_TYPE_INT32, Dims: []int64{2}}},
		Output: []*inference.ModelOutput{{Name: "y", DataType: inference.DataType_TYPE_INT32, Dims: []int64{2}}},
	}
	modelconfig.Normalize(source, modelconfig.Directory{Name: "m"})
	config, err := modelconfig.FromProto(source)
	if err != nil {
		t.Fatal(err)
	}
	s.gateway.Update(core.NewSnapshot(2, true, []*core.Model{{Name: "m", Versions: []*core.Version{
		{Ref: infer.ModelRef{Name: "m", Version: 3}, Config: config, State: infer.Ready, GPUs: []int32{1}},
	}}}))
	got, err := s.client.ModelConfig(t.Context(), &inference.ModelConfigRequest{Name: "m"})
	if err != nil {
		t.Fatal(err)
	}
	// Which kind of device it is was left open.
	source.InstanceGroup[0].Kind, source.InstanceGroup[0].Count, source.InstanceGroup[0].Gpus = inference.ModelInstanceGroup_KIND_GPU, 1, []int32{1}
	if diff := cmp.Diff(&inference.ModelConfigResponse{Config: source}, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	_, err = s.client.ModelConfig(t.Context(), &inference.ModelConfigRequest{Name: "m", Version: "4"})
	if status.Code(err) != codes.NotFound {
		t.Errorf("of no version: %v, want NOT_FOUND", err)
	}
}
