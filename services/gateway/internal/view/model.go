package view

import (
	"cmp"
	"slices"

	"github.com/nereid-serving/nereid/libs/infer"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// snapshot makes the gateway's image of a model.
func (m *model) snapshot(name string, observed map[content]report) *core.Model {
	m.forget(observed)
	if m.problem != "" {
		return &core.Model{Name: name, Problem: m.problem}
	}
	out := &core.Model{Name: name}
	for _, v := range m.value.GetVersions() {
		out.Versions = append(out.Versions, m.version(name, v, observed))
	}
	slices.SortFunc(out.Versions, func(a, b *core.Version) int { return cmp.Compare(a.Ref.Version, b.Ref.Version) })
	return out
}

// forget drops the configurations of contents that are neither wanted nor
// run.
func (m *model) forget(observed map[content]report) {
	for c := range m.configs {
		wanted := slices.ContainsFunc(m.value.GetVersions(), func(v *nereidv1.ModelVersion) bool {
			return c == content{v.GetVersion(), v.GetGeneration()}
		})
		if _, runs := observed[c]; !wanted && !runs {
			delete(m.configs, c)
		}
	}
}

// version decides which content of a version takes requests: the newest that
// is ready, so that the old content serves until the new one can.
func (m *model) version(name string, v *nereidv1.ModelVersion, observed map[content]report) *core.Version {
	want := content{v.GetVersion(), v.GetGeneration()}
	serve := want
	if v.GetDesired() == nereidv1.DesiredState_DESIRED_STATE_SERVE && observed[want].state != infer.Ready {
		serve = m.olderReady(want, observed)
	}
	state, cause := m.state(v, serve, observed)
	return &core.Version{
		Ref:    infer.ModelRef{Name: name, Version: serve.version, Generation: serve.generation},
		Config: m.configs[serve],
		State:  state,
		Cause:  cause,
	}
}

// olderReady returns the newest content of want's version that is ready and
// whose configuration is known, else want.
func (m *model) olderReady(want content, observed map[content]report) content {
	best := want
	for c, r := range observed {
		usable := c.version == want.version && r.state == infer.Ready && m.configs[c] != nil
		if usable && (best == want || c.generation > best.generation) {
			best = c
		}
	}
	return best
}

func (m *model) state(v *nereidv1.ModelVersion, serve content, observed map[content]report) (infer.InstanceState, string) {
	r, runs := observed[serve]
	switch {
	case runs && r.state == infer.Ready && v.GetDesired() == nereidv1.DesiredState_DESIRED_STATE_SERVE:
		return infer.Ready, ""
	case v.GetProblem() != "":
		return infer.Unavailable, v.GetProblem()
	case v.GetDesired() == nereidv1.DesiredState_DESIRED_STATE_UNLOADED && !runs:
		return infer.Unavailable, core.CauseUnloaded
	case v.GetDesired() == nereidv1.DesiredState_DESIRED_STATE_UNLOADED:
		return infer.Unloading, r.cause
	case !runs:
		return infer.Loading, "waits for a worker"
	}
	return r.state, r.cause
}
