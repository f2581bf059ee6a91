package control

import (
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

func fromTally(t infer.Tally) *nereidv1.Tally {
	return &nereidv1.Tally{Count: t.Count, TimeNs: t.Time.Nanoseconds()}
}

func toTally(m *nereidv1.Tally) infer.Tally {
	return infer.Tally{Count: m.GetCount(), Time: time.Duration(m.GetTimeNs())}
}

func fromStatistics(s *infer.Statistics) *nereidv1.ModelStatistics {
	m := &nereidv1.ModelStatistics{
		Inferences: s.Inferences, Executions: s.Executions,
		Success: fromTally(s.Success), Fail: fromTally(s.Fail),
		Queue: fromTally(s.Queue), Input: fromTally(s.Input), Infer: fromTally(s.Infer), Output: fromTally(s.Output),
		CacheHit: fromTally(s.CacheHit), CacheMiss: fromTally(s.CacheMiss),
	}
	if !s.LastInference.IsZero() {
		m.LastInferenceUnixNs = s.LastInference.UnixNano()
	}
	for _, b := range s.Batches {
		m.Batches = append(m.Batches, &nereidv1.BatchStatistics{Size: b.Size, Input: fromTally(b.Input), Infer: fromTally(b.Infer), Output: fromTally(b.Output)})
	}
	for _, r := range s.Responses {
		m.Responses = append(m.Responses, &nereidv1.ResponseStatistics{
			Infer: fromTally(r.Infer), Output: fromTally(r.Output), Success: fromTally(r.Success),
			Fail: fromTally(r.Fail), Empty: fromTally(r.Empty), Cancel: fromTally(r.Cancel),
		})
	}
	return m
}

func toStatistics(m *nereidv1.ModelStatistics) infer.Statistics {
	s := infer.Statistics{
		Inferences: m.GetInferences(), Executions: m.GetExecutions(),
		Success: toTally(m.GetSuccess()), Fail: toTally(m.GetFail()),
		Queue: toTally(m.GetQueue()), Input: toTally(m.GetInput()), Infer: toTally(m.GetInfer()), Output: toTally(m.GetOutput()),
		CacheHit: toTally(m.GetCacheHit()), CacheMiss: toTally(m.GetCacheMiss()),
	}
	if ns := m.GetLastInferenceUnixNs(); ns != 0 {
		s.LastInference = time.Unix(0, ns)
	}
	for _, b := range m.GetBatches() {
		s.Batches = append(s.Batches, infer.BatchStatistics{Size: b.GetSize(), Input: toTally(b.GetInput()), Infer: toTally(b.GetInfer()), Output: toTally(b.GetOutput())})
	}
	for _, r := range m.GetResponses() {
		s.Responses = append(s.Responses, infer.ResponseStatistics{
			Infer: toTally(r.GetInfer()), Output: toTally(r.GetOutput()), Success: toTally(r.GetSuccess()),
			Fail: toTally(r.GetFail()), Empty: toTally(r.GetEmpty()), Cancel: toTally(r.GetCancel()),
		})
	}
	return s
}
