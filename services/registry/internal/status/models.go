package status

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/state"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// models joins what should be served with what the workers report.
func (s *View) models() []*nereidv1.ModelStatus {
	placed := s.placed()
	known := make(map[infer.ModelID]*nereidv1.ModelStatus)
	for _, e := range s.Models {
		v := e.Value
		if v.GetRemoved() {
			continue
		}
		id := infer.ModelID{Namespace: v.GetNamespace(), Name: v.GetName()}
		m := &nereidv1.ModelStatus{
			Name: v.GetName(), Namespace: v.GetNamespace(), Problem: v.GetProblem(), Failure: v.GetFailure(), Changing: v.GetPrevious() != nil,
			Pool: cmp.Or(v.GetPool(), infer.DefaultPool),
		}
		for _, c := range v.GetVersions() {
			m.Versions = append(m.Versions, versionStatus(v.GetConfig(), c, removePlaced(placed, id, c)))
		}
		for _, c := range v.GetPrevious().GetVersions() {
			if slices.ContainsFunc(m.Versions, func(o *nereidv1.VersionStatus) bool { return same(o, c) }) {
				continue // changed in no file of its own
			}
			before := versionStatus(v.GetPrevious().GetConfig(), c, removePlaced(placed, id, c))
			before.Previous = true
			m.Versions = append(m.Versions, before)
		}
		known[id] = m
	}
	for ref, workers := range placed { // on their way out
		m := known[ref.ID()]
		if m == nil {
			m = &nereidv1.ModelStatus{Name: ref.Name, Namespace: ref.Namespace}
			known[ref.ID()] = m
		}
		m.Versions = append(m.Versions, &nereidv1.VersionStatus{Version: ref.Version, Generation: ref.Generation, Workers: workers})
	}
	for _, e := range s.Models {
		if !e.Value.GetRemoved() {
			describeEnsembles(known, e.Value)
		}
	}
	return ordered(known)
}

// describeEnsembles says of the versions of a model that are ensembles which step is not
// ready.
func describeEnsembles(known map[infer.ModelID]*nereidv1.ModelStatus, v *nereidv1.ModelValue) {
	id := infer.ModelID{Namespace: v.GetNamespace(), Name: v.GetName()}
	for _, version := range known[id].GetVersions() {
		config := v.GetConfig()
		if version.GetPrevious() {
			config = v.GetPrevious().GetConfig()
		}
		for i, step := range config.GetEnsembleScheduling().GetStep() {
			of := infer.ModelID{Namespace: cmp.Or(step.GetModelNamespace(), id.Namespace), Name: step.GetModelName()}
			if !serves(known[of]) {
				version.Ensemble.State = nereidv1.State_STATE_LOADING
				version.Ensemble.Cause = fmt.Sprintf("its step %d waits for the model %s", i, of)
				break
			}
		}
	}
}

// serves reports whether a version of a model is ready. An ensemble among the steps is
// taken to be: what is wrong with it is told of itself.
func serves(m *nereidv1.ModelStatus) bool {
	return slices.ContainsFunc(m.GetVersions(), func(v *nereidv1.VersionStatus) bool {
		return v.GetEnsemble() != nil || slices.ContainsFunc(v.GetWorkers(), func(p *nereidv1.PlacedVersion) bool {
			return p.GetState() == nereidv1.State_STATE_READY
		})
	})
}

func same(o *nereidv1.VersionStatus, c *nereidv1.ModelVersion) bool {
	return o.GetVersion() == c.GetVersion() && o.GetGeneration() == c.GetGeneration()
}

func versionStatus(config *inference.ModelConfig, c *nereidv1.ModelVersion, workers []*nereidv1.PlacedVersion) *nereidv1.VersionStatus {
	v := &nereidv1.VersionStatus{
		Version: c.GetVersion(), Generation: c.GetGeneration(), Desired: c.GetDesired(), Problem: c.GetProblem(), Workers: workers,
	}
	if config.GetEnsembleScheduling() != nil {
		v.Ensemble = &nereidv1.EnsembleStatus{State: nereidv1.State_STATE_READY}
	}
	return v
}

func removePlaced(placed map[infer.ModelRef][]*nereidv1.PlacedVersion, id infer.ModelID, c *nereidv1.ModelVersion) []*nereidv1.PlacedVersion {
	ref := infer.ModelRef{Namespace: id.Namespace, Name: id.Name, Version: c.GetVersion(), Generation: c.GetGeneration()}
	workers := placed[ref]
	delete(placed, ref)
	return workers
}

func ordered(known map[infer.ModelID]*nereidv1.ModelStatus) []*nereidv1.ModelStatus {
	list := make([]*nereidv1.ModelStatus, 0, len(known))
	for _, m := range known {
		slices.SortFunc(m.Versions, func(a, b *nereidv1.VersionStatus) int {
			return cmp.Or(cmp.Compare(a.GetVersion(), b.GetVersion()), cmp.Compare(a.GetGeneration(), b.GetGeneration()))
		})
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b *nereidv1.ModelStatus) int {
		return cmp.Or(cmp.Compare(a.GetName(), b.GetName()), cmp.Compare(a.GetNamespace(), b.GetNamespace()))
	})
	return list
}

// placed returns, by loaded version, which workers have it or should.
func (s *View) placed() map[infer.ModelRef][]*nereidv1.PlacedVersion {
	all := make(map[infer.ModelRef][]*nereidv1.PlacedVersion)
	on := func(worker string, m *nereidv1.ModelRef) *nereidv1.PlacedVersion {
		ref := state.RefOf(m)
		for _, p := range all[ref] {
			if p.GetWorkerId() == worker {
				return p
			}
		}
		p := &nereidv1.PlacedVersion{WorkerId: worker}
		all[ref] = append(all[ref], p)
		return p
	}
	for _, a := range s.Assigned {
		p := on(a.Worker, a.Version.GetModel())
		for _, g := range a.Version.GetGroups() {
			p.Assigned += g.GetCount()
		}
	}
	for _, r := range s.Runs {
		p := on(r.Worker, r.Version.GetModel())
		p.State, p.Cause, p.Reason = r.Version.GetState(), r.Version.GetCause(), r.Version.GetReason()
		p.Ready, _ = instances(r.Version)
		if away, all := state.Away(r.Version); away != "" {
			p.Cause = cmp.Or(p.Cause, away)
			if all {
				p.State = nereidv1.State_STATE_UNAVAILABLE
			}
		}
	}
	for _, workers := range all {
		slices.SortFunc(workers, func(a, b *nereidv1.PlacedVersion) int { return cmp.Compare(a.GetWorkerId(), b.GetWorkerId()) })
	}
	return all
}
