package core_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

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
			got, err := h.Gateway.Statistics(t.Context(), tt.model, tt.version, func(string) bool { return true })
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.refusal, refusalOf(err)); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

// If a pool does not answer, only its own counts are missing, and the other pools are not delayed: they are
// queried at the same time.
func TestStatisticsWithoutADeadPool(t *testing.T) {
	dead := errors.New("the scheduler does not answer")
	model := func(name, pool string) *core.Model {
		v := version(name, 1, infer.Ready)
		v.Pool = pool
		return &core.Model{Name: name, Versions: []*core.Version{v}}
	}
	for _, tt := range []struct {
		name, model string
		dead        []string
		want        []string // models
		missing     map[string]error
		err         error
	}{
		{name: "all", want: []string{"a", "b", "c"}, missing: map[string]error{}},
		{name: "all but one pool", dead: []string{"y"}, want: []string{"a", "c"}, missing: map[string]error{"y": dead}},
		{name: "a model of another pool", model: "a", dead: []string{"y"}, want: []string{"a"}, missing: map[string]error{}},
		{name: "a model of the pool", model: "b", dead: []string{"y"}, missing: map[string]error{}, err: dead},
		{name: "no pool", dead: []string{"x", "y", "z"}, missing: map[string]error{}, err: dead},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newGateway(t, model("a", "x"), model("b", "y"), model("c", "z"))
				h.statistics = func(pool string, refs []infer.ModelRef) ([]infer.Statistics, error) {
					<-time.After(5 * time.Second) // virtual
					if slices.Contains(tt.dead, pool) {
						return nil, dead
					}
					return make([]infer.Statistics, len(refs)), nil
				}
				began := time.Now()
				list, err := h.Gateway.Statistics(t.Context(), tt.model, "", func(string) bool { return true })
				var got []string
				for _, m := range list {
					got = append(got, m.Name)
				}
				if diff := cmp.Diff(tt.want, got); diff != "" || !errors.Is(err, tt.err) {
					t.Errorf("error %v, models (-want +got):\n%s", err, diff)
				}
				if diff := cmp.Diff(tt.missing, h.source.missing, cmpopts.EquateErrors()); diff != "" {
					t.Errorf("missing pools (-want +got):\n%s", diff)
				}
				if took := time.Since(began); took != 5*time.Second {
					t.Errorf("it took %v, want the 5s of the slowest pool", took)
				}
			})
		})
	}
}

func TestUnknownModelsAreNotReady(t *testing.T) {
	h := newGateway(
		t,
		&core.Model{Name: "m", Versions: []*core.Version{version("m", 1, infer.Ready), version("m", 2, infer.Loading)}},
		&core.Model{Name: "unloaded", Versions: []*core.Version{{Ref: infer.ModelRef{Name: "unloaded", Version: 1}, State: infer.Unavailable, Cause: core.CauseUnloaded}}},
		&core.Model{Name: "broken", Problem: "no configuration"},
		&core.Model{Namespace: "x", Name: "twice", Versions: []*core.Version{version("twice", 1, infer.Ready)}},
		&core.Model{Namespace: "y", Name: "twice", Versions: []*core.Version{version("twice", 1, infer.Ready)}},
	)
	for _, tt := range []struct {
		model, version string
		ready          bool
		refusal        refusal
	}{
		{model: "m", ready: true},
		{model: "m", version: "1", ready: true},
		{model: "m", version: "2"},
		{model: "m", version: "3"},
		{model: "m", version: "x", refusal: refusal{errs.InvalidVersion, "failed to get model version from specified version string 'x' (details: stol), version should be an integral value > 0"}},
		{model: "unloaded"},
		{model: "unloaded", version: "1"},
		{model: "broken"},
		{model: "twice"},
		{model: "unknown"},
		{model: "unknown", version: "1"},
		{},
	} {
		got, err := h.ModelReady(tt.model, tt.version)
		if diff := cmp.Diff(tt.refusal, refusalOf(err)); got != tt.ready || diff != "" {
			t.Errorf("%q version %q is ready: %v; error (-want +got):\n%s", tt.model, tt.version, got, diff)
		}
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
	missing    map[string]error // by pool, as told
}

func (s *source) of(pool string) core.StatisticsSource { return poolSource{s, pool} }

type poolSource struct {
	*source
	pool string
}

func (s poolSource) Statistics(_ context.Context, refs []infer.ModelRef) ([]infer.Statistics, error) {
	return s.statistics(s.pool, refs)
}
