package core_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

func TestStatisticsAreThoseOfReadyVersions(t *testing.T) {
	large := version("b", 7, infer.Ready)
	large.Pool = "large"
	h := newGateway(
		t,
		&core.Model{Name: "b", Versions: []*core.Version{version("b", 1, infer.Ready), version("b", 2, infer.Loading), large}},
		&core.Model{Name: "a", Versions: []*core.Version{version("a", 3, infer.Ready)}},
		&core.Model{Name: "down", Versions: []*core.Version{version("down", 1, infer.Unavailable)}},
	)
	// The counts tell whose they are.
	h.statistics = func(pool string, refs []infer.ModelRef) ([]infer.Statistics, error) {
		list := make([]infer.Statistics, len(refs))
		for i, ref := range refs {
			list[i].Inferences = uint64(100*ref.Version) + uint64(ref.Name[0]) + 10_000*uint64(len(pool))
		}
		return list, nil
	}
	of := func(model, version string, inferences uint64) core.ModelStatistics {
		return core.ModelStatistics{Name: model, Version: version, Statistics: infer.Statistics{Inferences: inferences}}
	}
	b1, b7, a3 := of("b", "1", 100+'b'), of("b", "7", 10_000*5+700+'b'), of("a", "3", 300+'a')
	for _, tt := range []struct {
		name, model, version string
		want                 []core.ModelStatistics
		refusal              refusal
	}{
		{name: "all models, by name", want: []core.ModelStatistics{a3, b1, b7}},
		{name: "a model", model: "b", want: []core.ModelStatistics{b1, b7}},
		{name: "a version", model: "b", version: "7", want: []core.ModelStatistics{b7}},
		{name: "a version that loads", model: "b", version: "2", refusal: refusal{errs.ModelUnavailable, "requested model version is not available for model 'b'"}},
		{name: "no such version", model: "b", version: "9", refusal: refusal{errs.ModelUnavailable, "requested model version is not available for model 'b'"}},
		{name: "no version is ready", model: "down", refusal: refusal{errs.ModelUnavailable, "requested model 'down' is not available"}},
		{name: "no such model", model: "c", version: "1", refusal: refusal{errs.ModelUnavailable, "requested model 'c' is not available"}},
		{name: "version 0", model: "b", version: "0", refusal: refusal{errs.ModelUnavailable, "requested model version is not available for model 'b'"}},
		{name: "no number", model: "b", version: "x", refusal: refusal{errs.InvalidVersion, "failed to get model version from specified version string 'x' (details: stol), version should be an integral value > 0"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := h.Gateway.Statistics(t.Context(), tt.model, tt.version)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.refusal, refusalOf(err)); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

func TestStatisticsThatCannotBeHad(t *testing.T) {
	h := newGateway(t, &core.Model{Name: "m", Versions: []*core.Version{version("m", 1, infer.Ready)}})
	gone := errors.New("the scheduler is gone")
	h.statistics = func(string, []infer.ModelRef) ([]infer.Statistics, error) { return nil, gone }
	if _, err := h.Gateway.Statistics(t.Context(), "m", ""); !errors.Is(err, gone) {
		t.Errorf("error is %v, want %v", err, gone)
	}
}

func TestModelConfigIsThatOfTheVersion(t *testing.T) {
	one, two := version("m", 1, infer.Ready), version("m", 2, infer.Ready)
	h := newGateway(t, &core.Model{Name: "m", Versions: []*core.Version{one, two, version("m", 3, infer.Loading)}})
	for number, want := range map[string]*core.Version{"1": one, "": two} {
		if got, err := h.ModelConfig("m", number); err != nil || got != want.Config {
			t.Errorf("version %q: %v, %v", number, got, err)
		}
	}
	if _, err := h.ModelConfig("m", "3"); errs.Of(err) != errs.ModelNotReady {
		t.Errorf("of a version that loads: %v, want %s", err, errs.ModelNotReady)
	}
}

// source has the counts of pools that a test says.
type source struct {
	statistics func(pool string, refs []infer.ModelRef) ([]infer.Statistics, error)
}

func (s *source) of(pool string) core.StatisticsSource { return poolSource{s, pool} }

type poolSource struct {
	*source
	pool string
}

func (s poolSource) Statistics(_ context.Context, refs []infer.ModelRef) ([]infer.Statistics, error) {
	return s.statistics(s.pool, refs)
}
