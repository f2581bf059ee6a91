package rpc

import (
	"context"
	"strconv"

	"github.com/nereid-serving/nereid/libs/infer"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
)

// ModelStatistics implements the RPC. A request without a name asks for all models.
func (s *service) ModelStatistics(ctx context.Context, r *inference.ModelStatisticsRequest) (*inference.ModelStatisticsResponse, error) {
	list, err := s.gateway.Statistics(ctx, r.GetName(), r.GetVersion(), path.CallOf(ctx).Sees)
	if err != nil {
		return nil, err
	}
	out := make([]*inference.ModelStatistics, len(list))
	for i := range list {
		out[i] = statisticsOf(&list[i])
	}
	return &inference.ModelStatisticsResponse{ModelStats: out}, nil
}

func statisticsOf(m *core.ModelStatistics) *inference.ModelStatistics {
	out := &inference.ModelStatistics{
		Name: m.Name, Version: m.Version, InferenceCount: m.Inferences, ExecutionCount: m.Executions,
		InferenceStats: &inference.InferStatistics{
			Success: duration(m.Success), Fail: duration(m.Fail), Queue: duration(m.Queue),
			ComputeInput: duration(m.Input), ComputeInfer: duration(m.Infer), ComputeOutput: duration(m.Output),
			CacheHit: duration(m.CacheHit), CacheMiss: duration(m.CacheMiss),
		},
	}
	if !m.LastInference.IsZero() {
		out.LastInference = uint64(m.LastInference.UnixMilli())
	}
	for _, b := range m.Batches {
		out.BatchStats = append(out.BatchStats, &inference.InferBatchStatistics{
			BatchSize:    uint64(b.Size),
			ComputeInput: duration(b.Input), ComputeInfer: duration(b.Infer), ComputeOutput: duration(b.Output),
		})
	}
	for i, r := range m.Responses {
		if out.ResponseStats == nil {
			out.ResponseStats = make(map[string]*inference.InferResponseStatistics, len(m.Responses))
		}
		out.ResponseStats[strconv.Itoa(i)] = &inference.InferResponseStatistics{
			ComputeInfer: duration(r.Infer), ComputeOutput: duration(r.Output), Success: duration(r.Success),
			Fail: duration(r.Fail), EmptyResponse: duration(r.Empty), Cancel: duration(r.Cancel),
		}
	}
	return out
}

func duration(t infer.Tally) *inference.StatisticDuration {
	return &inference.StatisticDuration{Count: t.Count, Ns: uint64(t.Time)}
}
