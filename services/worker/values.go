package worker

import (
	"net/url"
	"path/filepath"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/reconcile"
)

// maxInstances bounds an instance group, so that a number that nobody meant
// does not take the memory of the machine.
const maxInstances = 4096

// contentsOf reads a model's versions. What is wrong with them is kept as the
// cause with which they fail to load.
func contentsOf(v *nereidv1.ModelValue) map[int64]reconcile.Content {
	config, err := modelconfig.FromProto(v.GetConfig())
	if v.GetProblem() != "" {
		err = errs.New(errs.LoadFailed, "%s", v.GetProblem())
	}
	dir, dirErr := pathOf(v.GetUrl())
	id := infer.ModelID{Namespace: v.GetNamespace(), Name: v.GetName()}
	list := make(map[int64]reconcile.Content, len(v.GetVersions()))
	for _, version := range v.GetVersions() {
		c := reconcile.Content{
			Generation: version.GetGeneration(),
			Serve:      version.GetDesired() == nereidv1.DesiredState_DESIRED_STATE_SERVE,
			Err:        first(err, dirErr),
			Version: backend.Version{
				Ref:    id.Version(version.GetVersion(), version.GetGeneration()),
				Config: config, ModelDir: dir,
			},
		}
		if c.Err == nil && version.GetProblem() != "" {
			c.Err = errs.New(errs.LoadFailed, "%s", version.GetProblem())
		}
		if c.Err == nil {
			c.Version.Dir, c.Err = pathOf(version.GetUrl())
		}
		list[version.GetVersion()] = c
	}
	return list
}

func first(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// pathOf returns the directory that a URL names.
func pathOf(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "file" || u.Host != "" || !filepath.IsAbs(u.Path) {
		return "", errs.New(errs.LoadFailed, "the model's files are at %q: this worker reads local directories, such as file:///models/digits/1", text)
	}
	return u.Path, nil
}

// assignmentOf reads an assignment.
func assignmentOf(v *nereidv1.AssignmentValue, revision uint64) reconcile.Assignment {
	all := reconcile.Assignment{ModelsRevision: v.GetModelsRevision(), Revision: revision, LeaderEpoch: v.GetLeaderEpoch()}
	for _, version := range v.GetVersions() {
		m := version.GetModel()
		a := reconcile.Assigned{Ref: refOf(m)}
		for _, g := range version.GetGroups() {
			if g.GetCount() > maxInstances {
				a.Err = errs.New(errs.LoadFailed, "instance group %s of model '%s' asks for %d instances: at most %d are possible",
					g.GetName(), m.GetName(), g.GetCount(), maxInstances)
			}
			a.Groups = append(a.Groups, groupOf(g))
		}
		all.Versions = append(all.Versions, a)
	}
	return all
}

func refOf(m *nereidv1.ModelRef) infer.ModelRef {
	return infer.ModelRef{Namespace: m.GetNamespace(), Name: m.GetName(), Version: m.GetVersion(), Generation: m.GetGeneration()}
}

func refValue(ref infer.ModelRef) *nereidv1.ModelRef {
	return &nereidv1.ModelRef{Namespace: ref.Namespace, Name: ref.Name, Version: ref.Version, Generation: ref.Generation}
}

func groupOf(g *nereidv1.AssignedGroup) reconcile.Group {
	return reconcile.Group{
		Name: g.GetName(), Kind: kindOf(g.GetKind()), Device: int(g.GetDevice()),
		Count: int(g.GetCount()), Passive: g.GetPassive(), HostPolicy: g.GetHostPolicy(),
	}
}

func groupValue(g reconcile.Group) *nereidv1.AssignedGroup {
	return &nereidv1.AssignedGroup{
		Name: g.Name, Kind: kindValue(g.Kind), Device: int32(g.Device),
		Count: uint32(g.Count), Passive: g.Passive, HostPolicy: g.HostPolicy,
	}
}

func kindOf(k nereidv1.DeviceKind) modelconfig.DeviceKind {
	switch k {
	case nereidv1.DeviceKind_DEVICE_KIND_GPU:
		return modelconfig.KindGPU
	case nereidv1.DeviceKind_DEVICE_KIND_MODEL:
		return modelconfig.KindModel
	}
	return modelconfig.KindCPU
}

func kindValue(k modelconfig.DeviceKind) nereidv1.DeviceKind {
	switch k {
	case modelconfig.KindGPU:
		return nereidv1.DeviceKind_DEVICE_KIND_GPU
	case modelconfig.KindModel:
		return nereidv1.DeviceKind_DEVICE_KIND_MODEL
	}
	return nereidv1.DeviceKind_DEVICE_KIND_CPU
}

// value is what the worker publishes under its lease.
func (w *Worker) value(epoch uint64, versions []reconcile.VersionStatus, reached reconcile.Revisions) *nereidv1.WorkerValue {
	memory := w.deps.Pool.Stats()
	v := &nereidv1.WorkerValue{
		Schema: nereidv1.Schema, WorkerId: w.config.ID, Epoch: epoch,
		Device:          deviceValue(w.config.Device),
		MemoryUsedBytes: uint64(memory.InUse + memory.Free),
		Labels:          w.config.Labels,
		ModelsRevision:  reached.Models, AssignmentRevision: reached.Assignment,
	}
	for _, version := range versions {
		v.Versions = append(v.Versions, versionValue(version))
	}
	return v
}

func deviceValue(d Device) *nereidv1.WorkerDevice {
	return &nereidv1.WorkerDevice{Kind: kindValue(d.Kind), Number: d.Number}
}

func versionValue(s reconcile.VersionStatus) *nereidv1.WorkerVersion {
	state := stateOf(s.State)
	v := &nereidv1.WorkerVersion{
		Model: refValue(s.Ref),
		State: state, Cause: s.Cause,
	}
	if s.Cause != "" {
		v.Reason = string(s.Reason)
	}
	for _, g := range s.Groups {
		v.Groups = append(v.Groups, groupValue(g))
	}
	for _, in := range s.Instances {
		v.Instances = append(v.Instances, &nereidv1.WorkerInstance{Slot: in.Slot, Name: in.Name, Device: in.Device, State: state})
	}
	return v
}

func stateOf(s infer.InstanceState) nereidv1.State {
	switch s {
	case infer.Loading:
		return nereidv1.State_STATE_LOADING
	case infer.Ready:
		return nereidv1.State_STATE_READY
	case infer.Unloading:
		return nereidv1.State_STATE_UNLOADING
	case infer.Unavailable:
		return nereidv1.State_STATE_UNAVAILABLE
	}
	return nereidv1.State_STATE_UNSPECIFIED
}
