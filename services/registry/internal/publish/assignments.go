package publish

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/internal/place"
)

// Assignments is what the bucket assignments holds, by worker.
type Assignments map[string]Assignment

// Assignment is one key's value and revision.
type Assignment struct {
	Value    *nereidv1.AssignmentValue
	Revision uint64
}

// AssignmentWrite is one change of the bucket assignments.
type AssignmentWrite struct {
	Worker   string
	Value    *nereidv1.AssignmentValue
	Replaces uint64
}

// Workers converts the live workers, in the order of their ids.
func Workers(stored map[string]*nereidv1.WorkerValue) []place.Worker {
	var workers []place.Worker
	for _, id := range slices.Sorted(maps.Keys(stored)) {
		device := stored[id].GetDevice()
		workers = append(workers, place.Worker{ID: id, Kind: kindOf(device.GetKind()), Number: device.GetNumber()})
	}
	return workers
}

// Versions gives the versions to be placed: those that are to serve and those
// that serve until these can. A configuration that cannot be read is its
// versions' misfit: unreadable says why.
func Versions(stored Models) (versions []place.Version, unreadable map[infer.ModelRef]string) {
	unreadable = make(map[infer.ModelRef]string)
	for _, key := range slices.Sorted(maps.Keys(stored)) {
		value := stored[key].Value
		if value.GetProblem() != "" {
			continue
		}
		next, err := Placeable(IDOf(value), value.GetConfig(), value.GetVersions())
		if err != nil {
			for _, version := range value.GetVersions() {
				unreadable[ref(IDOf(value), version)] = errs.From(err).Msg
			}
		}
		versions = append(versions, next...)
		serving, err := Placeable(IDOf(value), value.GetPrevious().GetConfig(), value.GetPrevious().GetVersions())
		if err != nil {
			continue // it was placed by whoever could read it
		}
		for _, v := range serving {
			if !slices.ContainsFunc(next, func(n place.Version) bool { return n.Model == v.Model }) {
				versions = append(versions, v)
			}
		}
	}
	return versions, unreadable
}

// Placeable gives the versions of a configuration that can be placed.
func Placeable(id infer.ModelID, config *inference.ModelConfig, versions []*nereidv1.ModelVersion) ([]place.Version, error) {
	versions = slices.DeleteFunc(slices.Clone(versions), func(v *nereidv1.ModelVersion) bool { return !placeable(v) })
	if len(versions) == 0 {
		return nil, nil
	}
	c, err := modelconfig.FromProto(config)
	if err != nil {
		return nil, err
	}
	list := make([]place.Version, len(versions))
	for i, v := range versions {
		list[i] = place.Version{Model: ref(id, v), Groups: c.Groups}
	}
	return list, nil
}

// DiffAssignments gives the writes, in the order of workers, after which each
// worker of the placement has its assignment. Assignments of other workers
// are left alone. An assignment is written again under a new epoch even if it
// is the same otherwise: from then on its worker refuses what a deposed leader
// may still write.
func DiffAssignments(p place.Placement, stored Assignments, revision, epoch uint64) []AssignmentWrite {
	var writes []AssignmentWrite
	for _, worker := range slices.Sorted(maps.Keys(p.Workers)) {
		old := stored[worker]
		next := assignmentValue(worker, p.Workers[worker], revision, epoch)
		if !sameAssignment(old.Value, next) {
			writes = append(writes, AssignmentWrite{Worker: worker, Value: next, Replaces: old.Revision})
		}
	}
	return writes
}

// sameAssignment ignores the models' revision: a change there that leaves the
// versions as they are is nothing to the worker.
func sameAssignment(old, next *nereidv1.AssignmentValue) bool {
	if old == nil {
		return false
	}
	aligned := proto.CloneOf(old)
	aligned.ModelsRevision = next.GetModelsRevision()
	return proto.Equal(aligned, next)
}

func assignmentValue(worker string, assigned []place.Assigned, revision, epoch uint64) *nereidv1.AssignmentValue {
	v := &nereidv1.AssignmentValue{
		Schema:         nereidv1.Schema,
		WorkerId:       worker,
		ModelsRevision: revision,
		LeaderEpoch:    epoch,
	}
	for _, a := range assigned {
		version := &nereidv1.AssignedVersion{Model: &nereidv1.ModelRef{
			Namespace: a.Model.Namespace, Name: a.Model.Name, Version: a.Model.Version, Generation: a.Model.Generation,
		}}
		for _, g := range a.Groups {
			version.Groups = append(version.Groups, &nereidv1.AssignedGroup{
				Name: g.Name, Kind: deviceKind(g.Kind), Device: g.Device, Count: uint32(g.Count), Passive: g.Passive, HostPolicy: g.HostPolicy,
			})
		}
		v.Versions = append(v.Versions, version)
	}
	return v
}

// kindOf reads a worker's device; one that states none is a CPU.
func kindOf(k nereidv1.DeviceKind) modelconfig.DeviceKind {
	if k == nereidv1.DeviceKind_DEVICE_KIND_GPU {
		return modelconfig.KindGPU
	}
	return modelconfig.KindCPU
}

func deviceKind(k modelconfig.DeviceKind) nereidv1.DeviceKind {
	switch k {
	case modelconfig.KindGPU:
		return nereidv1.DeviceKind_DEVICE_KIND_GPU
	case modelconfig.KindModel:
		return nereidv1.DeviceKind_DEVICE_KIND_MODEL
	}
	return nereidv1.DeviceKind_DEVICE_KIND_CPU
}
