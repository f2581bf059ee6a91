package view

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/nereid-serving/nereid/libs/infer"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// snapshot returns the model as the gateway serves it.
func (m *model) snapshot(id infer.ModelID, observed map[loadedVersion]report) *core.Model {
	m.pruneConfigs(observed)
	if m.problem != "" {
		return &core.Model{Namespace: id.Namespace, Name: id.Name, Problem: m.problem, LoadFailed: m.value.GetLoadFailed() || m.value.GetProblem() == ""}
	}
	out := &core.Model{Namespace: id.Namespace, Name: id.Name, Removed: m.value.GetRemoved()}
	serving := m.value.GetPrevious().GetVersions()
	for _, v := range m.value.GetVersions() {
		if !has(serving, v.GetVersion()) {
			out.Versions = append(out.Versions, m.version(id, v, observed))
		}
	}
	for _, v := range serving {
		out.Versions = append(out.Versions, m.version(id, v, observed))
	}
	slices.SortFunc(out.Versions, func(a, b *core.Version) int { return cmp.Compare(a.Ref.Version, b.Ref.Version) })
	return out
}

// pruneConfigs drops the configurations of loaded versions that are neither
// desired nor reported by a worker.
func (m *model) pruneConfigs(observed map[loadedVersion]report) {
	for c := range m.configs {
		names := func(v *nereidv1.ModelVersion) bool { return c == loadedVersion{v.GetVersion(), v.GetGeneration()} }
		wanted := slices.ContainsFunc(m.value.GetVersions(), names) || slices.ContainsFunc(m.value.GetPrevious().GetVersions(), names)
		if _, runs := observed[c]; !wanted && !runs {
			delete(m.configs, c)
			delete(m.contents, c)
		}
	}
}

func has(versions []*nereidv1.ModelVersion, number int64) bool {
	return slices.ContainsFunc(versions, func(v *nereidv1.ModelVersion) bool { return v.GetVersion() == number })
}

// version selects the generation of a version that accepts requests: the desired one or, while that is not
// ready, the newest ready one. During a reload the old generation thus serves until the new one is ready.
func (m *model) version(id infer.ModelID, v *nereidv1.ModelVersion, observed map[loadedVersion]report) *core.Version {
	want := loadedVersion{v.GetVersion(), v.GetGeneration()}
	serve := want
	if v.GetDesired() == nereidv1.DesiredState_DESIRED_STATE_SERVE && observed[want].state != infer.Ready && !m.composed(want) {
		serve = m.otherReady(want, observed)
	}
	state, cause := m.state(v, serve, observed)
	if state == infer.Ready && m.staged(v) {
		state, cause = infer.Loading, "" // the registry swaps all versions at once
	}
	return &core.Version{
		Ref:     id.Version(serve.version, serve.generation),
		Config:  m.configs[serve],
		Content: m.contents[serve],
		Pool:    cmp.Or(m.value.GetPool(), infer.DefaultPool),
		State:   state,
		Cause:   cause,
		Away:    observed[serve].away,
		GPUs:    numbers(observed[serve].gpus),
	}
}

// numbers returns the positions of the bits that are set.
func numbers(set uint64) (list []int32) {
	for ; set != 0; set &= set - 1 {
		list = append(list, int32(bits.TrailingZeros64(set)))
	}
	return list
}

// composed reports whether a loaded version is an ensemble, which runs on no worker.
func (m *model) composed(v loadedVersion) bool {
	c := m.configs[v]
	return c != nil && c.Ensemble != nil
}

// staged reports whether a version is loading while the previous versions serve.
func (m *model) staged(v *nereidv1.ModelVersion) bool {
	serving := m.value.GetPrevious().GetVersions()
	return len(serving) > 0 && !has(serving, v.GetVersion())
}

// otherReady returns the newest ready generation of want's version whose configuration is known, or want if
// there is none.
func (m *model) otherReady(want loadedVersion, observed map[loadedVersion]report) loadedVersion {
	best := want
	for c, r := range observed {
		usable := c.version == want.version && r.state == infer.Ready && m.configs[c] != nil
		if usable && (best == want || c.generation > best.generation) {
			best = c
		}
	}
	return best
}

func (m *model) state(v *nereidv1.ModelVersion, serve loadedVersion, observed map[loadedVersion]report) (infer.InstanceState, string) {
	r, runs := observed[serve]
	switch {
	case runs && r.state == infer.Ready && v.GetDesired() == nereidv1.DesiredState_DESIRED_STATE_SERVE:
		return infer.Ready, m.value.GetFailure()
	case v.GetProblem() != "":
		return infer.Unavailable, v.GetProblem()
	case v.GetDesired() == nereidv1.DesiredState_DESIRED_STATE_SERVE && m.composed(serve):
		return infer.Ready, m.value.GetFailure()
	case v.GetDesired() == nereidv1.DesiredState_DESIRED_STATE_UNLOADED && !runs:
		return infer.Unavailable, core.CauseUnloaded
	case v.GetDesired() == nereidv1.DesiredState_DESIRED_STATE_UNLOADED:
		return infer.Unloading, r.cause
	case !runs:
		return infer.Loading, "waiting for a worker"
	}
	return r.state, r.cause
}
