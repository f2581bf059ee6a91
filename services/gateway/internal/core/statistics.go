package core

import (
	"context"
	"strconv"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// StatisticsSource has the counts of model versions: the scheduler of their
// pool.
type StatisticsSource interface {
	// Statistics returns one value for each ref, in their order: zero for a
	// version that has had no request yet. It is safe for concurrent use.
	Statistics(context.Context, []infer.ModelRef) ([]infer.Statistics, error)
}

// ModelStatistics are the counts of one model version.
type ModelStatistics struct {
	Name, Version string
	infer.Statistics
}

// Statistics returns the counts of a model's ready versions or of the one
// asked for; of all models, by name, if model is empty.
func (g *Gateway) Statistics(ctx context.Context, model, version string) ([]ModelStatistics, error) {
	refs, err := g.Snapshot().measured(model, version)
	if err != nil {
		return nil, err
	}
	counts, err := g.statistics.Statistics(ctx, refs)
	if err != nil {
		return nil, err
	}
	list := make([]ModelStatistics, len(refs))
	for i, ref := range refs {
		list[i] = ModelStatistics{Name: ref.Name, Version: strconv.FormatInt(ref.Version, 10), Statistics: counts[i]}
	}
	return list, nil
}

// measured returns the ready versions that a call for statistics names. The
// errors are Triton's, and other ones than those of inference.
func (s *Snapshot) measured(model, version string) ([]infer.ModelRef, error) {
	number, err := parseVersion(version)
	if err != nil {
		return nil, err
	}
	if model == "" {
		return s.allReady(), nil
	}
	m, err := s.named(model)
	if len(s.requested[model]) > 1 {
		return nil, err
	}
	ready := m.ready()
	if len(ready) == 0 {
		return nil, errs.New(errs.ModelUnavailable, "requested model '%s' is not available", model).WithModel(model)
	}
	if number == latestVersion {
		return ready, nil
	}
	for _, ref := range ready {
		if ref.Version == number {
			return []infer.ModelRef{ref}, nil
		}
	}
	return nil, errs.New(errs.ModelUnavailable, "requested model version is not available for model '%s'", model).WithModel(model)
}

func (s *Snapshot) allReady() []infer.ModelRef {
	var refs []infer.ModelRef
	for _, m := range s.ordered {
		refs = append(refs, m.ready()...)
	}
	return refs
}
