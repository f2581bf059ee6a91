package core

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// StatisticsSource returns the counts of a pool's model versions; the pool's scheduler implements it.
type StatisticsSource interface {
	// Statistics returns one value for each ref, in their order: zero for a version without requests so far. It
	// is safe for concurrent use.
	Statistics(context.Context, []infer.ModelRef) ([]infer.Statistics, error)
}

// ModelStatistics are the counts of one model version.
type ModelStatistics struct {
	Name, Version string
	infer.Statistics
}

// Statistics returns the counts of a model's ready versions, or of the requested one. If model is empty it
// returns those of all models that the caller sees, by name. It omits versions whose pool does not answer; if
// no pool answers, it returns the error of one of them.
func (g *Gateway) Statistics(ctx context.Context, model, version string, sees func(model string) bool) ([]ModelStatistics, error) {
	snapshot := g.Snapshot()
	refs, err := snapshot.statisticsTargets(model, version)
	if err != nil {
		return nil, err
	}
	refs = slices.DeleteFunc(refs, func(ref infer.ModelRef) bool { return !sees(ref.Name) })
	counts, err := g.counts(ctx, snapshot, refs)
	if err != nil {
		return nil, err
	}
	list := make([]ModelStatistics, 0, len(refs))
	for i, ref := range refs {
		if counts[i] != nil {
			list = append(list, ModelStatistics{Name: ref.Name, Version: strconv.FormatInt(ref.Version, 10), Statistics: *counts[i]})
		}
	}
	return list, nil
}

// maxPoolsAsked is how many pools one call queries at a time.
const maxPoolsAsked = 16

// counts queries the pools of the versions. Its result has nil for each version whose pool did not answer.
func (g *Gateway) counts(ctx context.Context, s *Snapshot, refs []infer.ModelRef) ([]*infer.Statistics, error) {
	places := make(map[string][]int)
	for i, ref := range refs {
		pool := s.poolOf(ref)
		places[pool] = append(places[pool], i)
	}
	all := make([]*infer.Statistics, len(refs))
	var mu sync.Mutex
	failed := make(map[string]error) // by pool; guarded by mu
	var group errgroup.Group
	group.SetLimit(maxPoolsAsked)
	for pool, at := range places {
		group.Go(func() error {
			asked := make([]infer.ModelRef, len(at))
			for n, i := range at {
				asked[n] = refs[i]
			}
			counts, err := g.statistics(pool).Statistics(ctx, asked)
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed[pool] = err
				return nil
			}
			for n, i := range at {
				all[i] = &counts[n]
			}
			return nil
		})
	}
	_ = group.Wait() // no pool returns an error
	if len(failed) > 0 && len(failed) == len(places) {
		first := slices.Min(slices.Collect(maps.Keys(failed)))
		return nil, failed[first]
	}
	for pool, err := range failed {
		g.missing(pool, err)
	}
	return all, nil
}

// poolOf returns the pool of a version in the snapshot.
func (s *Snapshot) poolOf(ref infer.ModelRef) string {
	for _, v := range s.models[ref.ID()].Versions {
		if v.Ref == ref {
			return v.Pool
		}
	}
	return ""
}

// statisticsTargets returns the ready versions that a statistics call names. Its errors are Triton's, and
// differ from those for inference.
func (s *Snapshot) statisticsTargets(model, version string) ([]infer.ModelRef, error) {
	number, err := parseVersion(version)
	if err != nil {
		return nil, err
	}
	if model == "" {
		return s.allReady(), nil
	}
	m, err := s.lookup(model)
	if len(s.byName[model]) > 1 {
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
