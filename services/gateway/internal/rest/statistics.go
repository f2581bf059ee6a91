package rest

import (
	"strconv"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// The statistics in the form that clients receive. No field is omitted.
type (
	statisticsJSON struct {
		Name           string                       `json:"name"`
		Version        string                       `json:"version"`
		LastInference  int64                        `json:"last_inference"` // ms since 1970
		InferenceCount uint64                       `json:"inference_count"`
		ExecutionCount uint64                       `json:"execution_count"`
		Inference      inferenceStatsJSON           `json:"inference_stats"`
		Responses      map[string]responseStatsJSON `json:"response_stats"` // of decoupled models, by response index
		Batches        []batchStatsJSON             `json:"batch_stats"`
		Memory         []struct{}                   `json:"memory_usage"` // of backends that report it
	}

	inferenceStatsJSON struct {
		Success       durationJSON `json:"success"`
		Fail          durationJSON `json:"fail"`
		Queue         durationJSON `json:"queue"`
		ComputeInput  durationJSON `json:"compute_input"`
		ComputeInfer  durationJSON `json:"compute_infer"`
		ComputeOutput durationJSON `json:"compute_output"`
		CacheHit      durationJSON `json:"cache_hit"`
		CacheMiss     durationJSON `json:"cache_miss"`
	}

	responseStatsJSON struct {
		ComputeInfer  durationJSON `json:"compute_infer"`
		ComputeOutput durationJSON `json:"compute_output"`
		Success       durationJSON `json:"success"`
		Fail          durationJSON `json:"fail"`
		EmptyResponse durationJSON `json:"empty_response"`
		Cancel        durationJSON `json:"cancel"`
	}

	batchStatsJSON struct {
		BatchSize     int64        `json:"batch_size"`
		ComputeInput  durationJSON `json:"compute_input"`
		ComputeInfer  durationJSON `json:"compute_infer"`
		ComputeOutput durationJSON `json:"compute_output"`
	}

	durationJSON struct {
		Count uint64 `json:"count"`
		NS    int64  `json:"ns"`
	}
)

func (s *server) statistics(c *call) error { return s.replyStatistics(c, "", "") }

func (s *server) modelStatistics(c *call) error {
	model, version, err := target(c.http)
	if err != nil {
		return err
	}
	return s.replyStatistics(c, model, version)
}

func (s *server) replyStatistics(c *call, model, version string) error {
	list, err := s.gateway.Statistics(c.Context(), model, version, c.Sees)
	if err != nil {
		return err
	}
	out := make([]statisticsJSON, len(list))
	for i := range list {
		out[i] = statisticsOf(&list[i])
	}
	return reply(c.writer, struct {
		Models []statisticsJSON `json:"model_stats"`
	}{out})
}

func statisticsOf(m *core.ModelStatistics) statisticsJSON {
	out := statisticsJSON{
		Name: m.Name, Version: m.Version, InferenceCount: m.Inferences, ExecutionCount: m.Executions,
		Inference: inferenceStatsJSON{
			Success: duration(m.Success), Fail: duration(m.Fail), Queue: duration(m.Queue),
			ComputeInput: duration(m.Input), ComputeInfer: duration(m.Infer), ComputeOutput: duration(m.Output),
			CacheHit: duration(m.CacheHit), CacheMiss: duration(m.CacheMiss),
		},
		Responses: make(map[string]responseStatsJSON, len(m.Responses)), Batches: make([]batchStatsJSON, len(m.Batches)), Memory: []struct{}{},
	}
	if !m.LastInference.IsZero() {
		out.LastInference = m.LastInference.UnixMilli()
	}
	for i, b := range m.Batches {
		out.Batches[i] = batchStatsJSON{b.Size, duration(b.Input), duration(b.Infer), duration(b.Output)}
	}
	for i, r := range m.Responses {
		out.Responses[strconv.Itoa(i)] = responseStatsJSON{
			duration(r.Infer), duration(r.Output), duration(r.Success), duration(r.Fail), duration(r.Empty), duration(r.Cancel),
		}
	}
	return out
}

func duration(t infer.Tally) durationJSON { return durationJSON{t.Count, t.Time.Nanoseconds()} }
