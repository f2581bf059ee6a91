package publish

import (
	"maps"
	"slices"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/state"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core/place"
)

// Worker converts a live worker.
func Worker(id string, v *nereidv1.WorkerValue, pools Pools) place.Worker {
	return place.Worker{
		ID: id, Kind: state.KindOf(v.GetDevice().GetKind()), Number: v.GetDevice().GetNumber(),
		Pool: pools.OfWorker(v.GetLabels()), Labels: v.GetLabels(),
		Budget: int64(v.GetMemoryBudgetBytes()), Leaving: v.GetLeaving(), Unwell: v.GetDeviceProblem() != "", Lacking: v.GetLacking(),
	}
}

// Versions gives the versions to be placed: those that are to serve and those
// that serve until these can. A configuration that cannot be read is its
// versions' misfit: unreadable is why.
func Versions(stored Models, pools Pools) (versions []place.Version, unreadable map[infer.ModelRef]string) {
	unreadable = make(map[infer.ModelRef]string)
	for _, key := range slices.Sorted(maps.Keys(stored)) {
		value := stored[key].Value
		if value.GetProblem() != "" {
			continue
		}
		next, err := Placeable(IDOf(value), value.GetConfig(), value.GetVersions(), pools)
		if err != nil {
			for _, version := range value.GetVersions() {
				unreadable[ref(IDOf(value), version)] = errs.From(err).Msg
			}
		}
		versions = append(versions, next...)
		serving, err := Placeable(IDOf(value), value.GetPrevious().GetConfig(), value.GetPrevious().GetVersions(), pools)
		if err != nil {
			continue // another leader, which could read it, has placed it
		}
		for _, v := range serving {
			if !slices.ContainsFunc(next, func(n place.Version) bool { return n.Model == v.Model }) {
				versions = append(versions, v)
			}
		}
	}
	return versions, unreadable
}

// Placeable gives the versions of a configuration that can be placed. An ensemble is
// nowhere: its steps are.
func Placeable(id infer.ModelID, config *inference.ModelConfig, versions []*nereidv1.ModelVersion, pools Pools) ([]place.Version, error) {
	versions = slices.DeleteFunc(slices.Clone(versions), func(v *nereidv1.ModelVersion) bool { return !placeable(v) })
	if len(versions) == 0 || config.GetEnsembleScheduling() != nil {
		return nil, nil
	}
	c, err := modelconfig.FromProto(config)
	if err != nil {
		return nil, err
	}
	list := make([]place.Version, len(versions))
	for i, v := range versions {
		list[i] = place.Version{Model: ref(id, v), Groups: c.Groups, Backend: c.Backend, Rules: c.Placement, Pool: pools.OfModel(id, config)}
	}
	return list, nil
}

// Part is a worker's part of a model, which its key names.
type Part struct{ Worker, Model string }

// Parts sorts a placement by worker and model.
func Parts(p place.Placement) map[Part][]place.Assigned {
	parts := make(map[Part][]place.Assigned)
	for worker, assigned := range p.Workers {
		for _, a := range assigned {
			part := Part{worker, a.Model.ID().Key()}
			parts[part] = append(parts[part], a)
		}
	}
	return parts
}

// Assign is the value by which a worker runs versions of a model. Without any
// it is a worker's head, or what takes a model away from it.
func Assign(worker string, assigned []place.Assigned, revision, epoch uint64) *nereidv1.AssignmentValue {
	v := &nereidv1.AssignmentValue{Schema: nereidv1.Schema, WorkerId: worker, ModelsRevision: revision, LeaderEpoch: epoch}
	for _, a := range assigned {
		v.Versions = append(v.Versions, assignedVersion(a))
	}
	return v
}

// Assigns reports whether a value has a worker run just these versions. A change
// of the models that leaves them as they are is nothing to the worker.
func Assigns(v *nereidv1.AssignmentValue, assigned []place.Assigned) bool {
	return slices.EqualFunc(v.GetVersions(), assigned, func(v *nereidv1.AssignedVersion, a place.Assigned) bool {
		return state.RefOf(v.GetModel()) == a.Model && slices.EqualFunc(v.GetGroups(), a.Groups, func(v *nereidv1.AssignedGroup, g place.Group) bool {
			return v.GetName() == g.Name && v.GetKind() == state.Kind(g.Kind) && v.GetDevice() == g.Device && int(v.GetCount()) == g.Count &&
				v.GetPassive() == g.Passive && v.GetHostPolicy() == g.HostPolicy
		})
	})
}

// Adds reports whether a worker that has a value is to run something more. Such changes are
// written after all others: what they add may need the memory that the others free, and a leader
// may die between two writes.
func Adds(v *nereidv1.AssignmentValue, assigned []place.Assigned) bool {
	return slices.ContainsFunc(assigned, func(a place.Assigned) bool {
		return !slices.ContainsFunc(v.GetVersions(), func(v *nereidv1.AssignedVersion) bool { return state.RefOf(v.GetModel()) == a.Model })
	})
}

func assignedVersion(a place.Assigned) *nereidv1.AssignedVersion {
	version := &nereidv1.AssignedVersion{Model: state.Ref(a.Model)}
	for _, g := range a.Groups {
		version.Groups = append(version.Groups, &nereidv1.AssignedGroup{
			Name: g.Name, Kind: state.Kind(g.Kind), Device: g.Device, Count: uint32(g.Count), Passive: g.Passive, HostPolicy: g.HostPolicy,
		})
	}
	return version
}
