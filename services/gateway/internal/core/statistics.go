package core

import (
	"context"
	"strconv"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// StatisticsSource has the counts of a pool's model versions: its scheduler.
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
	snapshot := g.Snapshot()
	refs, err := snapshot.measured(model, version)
	if err != nil {
		return nil, err
	}
	counts, err := g.counts(ctx, snapshot, refs)
	if err != nil {
		return nil, err
	}
	list := make([]ModelStatistics, len(refs))
	for i, ref := range refs {
		list[i] = ModelStatistics{Name: ref.Name, Version: strconv.FormatInt(ref.Version, 10), Statistics: counts[i]}
	}
	return list, nil
}

// counts asks each version's pool.
func (g *Gateway) counts(ctx context.Context, s *Snapshot, refs []infer.ModelRef) ([]infer.Statistics, error) {
	places := make(map[string][]int)
	for i, ref := range refs {
		pool := s.poolOf(ref)
		places[pool] = append(places[pool], i)
	}
	all := make([]infer.Statistics, len(refs))
	for pool, at := range places {
		asked := make([]infer.ModelRef, len(at))
		for n, i := range at {
			asked[n] = refs[i]
		}
		counts, err := g.statistics(pool).Statistics(ctx, asked)
		if err != nil {
			return nil, err
		}
		for n, i := range at {
			all[i] = counts[n]
		}
	}
	return all, nil
}

// poolOf names the pool of a version in the snapshot.
func (s *Snapshot) poolOf(ref infer.ModelRef) string {
	for _, v := range s.models[ref.ID()].Versions {
		if v.Ref == ref {
			return v.Pool
		}
	}
	return ""
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
