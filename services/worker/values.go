package worker

import (
	"slices"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/state"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/worker/internal/reconcile"
	"github.com/nereid-serving/nereid/services/worker/internal/source"
)

// maxInstances limits an instance group, so that a mistyped number does not use up the machine's memory.
const maxInstances = 4096

// versionsOf returns the contents of a model's value: those that should serve, and those that serve until these can.
// If something is wrong with one, that becomes the cause with which it fails to load.
func versionsOf(v *nereidv1.ModelValue) []reconcile.Version {
	var problem error
	if v.GetProblem() != "" {
		problem = errs.New(errs.LoadFailed, "%s", v.GetProblem())
	}
	next := &nereidv1.ModelContent{Config: v.GetConfig(), Url: v.GetUrl(), Versions: v.GetVersions()}
	id := infer.ModelID{Namespace: v.GetNamespace(), Name: v.GetName()}
	list := generationsOf(id, next, problem)
	for _, c := range generationsOf(id, v.GetPrevious(), nil) {
		if !slices.ContainsFunc(list, func(n reconcile.Version) bool { return n.Ref == c.Ref }) {
			list = append(list, c)
		}
	}
	return list
}

func generationsOf(id infer.ModelID, v *nereidv1.ModelContent, problem error) []reconcile.Version {
	config, err := modelconfig.FromProto(v.GetConfig())
	if problem != nil {
		err = problem
	}
	var list []reconcile.Version
	for _, version := range v.GetVersions() {
		c := reconcile.Version{
			Ref:    id.Version(version.GetVersion(), version.GetGeneration()),
			Serve:  version.GetDesired() == nereidv1.DesiredState_DESIRED_STATE_SERVE,
			Config: config, Err: err, Bytes: int64(version.GetBytes()),
			Files: source.Content{
				ModelURL: v.GetUrl(), URL: version.GetUrl(), Digest: version.GetDigest(), Fingerprint: version.GetFingerprint(),
			},
		}
		if c.Err == nil && version.GetProblem() != "" {
			c.Err = errs.New(errs.LoadFailed, "%s", version.GetProblem())
		}
		list = append(list, c)
	}
	return list
}

// assignmentOf converts the assignment of a model.
func assignmentOf(v *nereidv1.AssignmentValue, revision uint64) reconcile.Assignment {
	all := reconcile.Assignment{ModelsRevision: v.GetModelsRevision(), Revision: revision, LeaderEpoch: v.GetLeaderEpoch()}
	for _, version := range v.GetVersions() {
		m := version.GetModel()
		a := reconcile.Assigned{Ref: state.RefOf(m)}
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

func groupOf(g *nereidv1.AssignedGroup) reconcile.Group {
	return reconcile.Group{
		Name: g.GetName(), Kind: state.KindOf(g.GetKind()), Device: int(g.GetDevice()),
		Count: int(g.GetCount()), Passive: g.GetPassive(), HostPolicy: g.GetHostPolicy(),
	}
}

func groupValue(g reconcile.Group) *nereidv1.AssignedGroup {
	return &nereidv1.AssignedGroup{
		Name: g.Name, Kind: state.Kind(g.Kind), Device: int32(g.Device),
		Count: uint32(g.Count), Passive: g.Passive, HostPolicy: g.HostPolicy,
	}
}

// value returns what the worker publishes under its lease.
func (w *Worker) value(epoch uint64, reached reconcile.Revisions) *nereidv1.WorkerValue {
	memory := w.deps.Pool.Stats()
	return &nereidv1.WorkerValue{
		Schema: nereidv1.Schema, WorkerId: w.config.ID, Epoch: epoch,
		Device: w.device.value(), DeviceProblem: w.device.sick(), Lacking: w.config.lacking(),
		MemoryUsedBytes: uint64(memory.InUse + memory.Free),
		Address:         w.config.Address,
		Labels:          w.labels,
		Version:         w.config.Version,
		ModelsRevision:  reached.Models, AssignmentRevision: reached.Assignment,
		MemoryBudgetBytes: w.memoryBudget, Leaving: w.leaving.Load(), State: w.state(),
		Restarts: uint32(w.config.Restarts), LastExit: w.config.LastExit, Unsteady: w.config.Restarts > 0 && !w.steady.Load(),
	}
}

// instances returns what the worker publishes about a model.
func (w *Worker) instances(epoch uint64, versions []reconcile.VersionStatus) *nereidv1.InstancesValue {
	v := &nereidv1.InstancesValue{Schema: nereidv1.Schema, WorkerId: w.config.ID, Epoch: epoch}
	for _, version := range versions {
		v.Versions = append(v.Versions, versionValue(version))
	}
	return v
}

func deviceValue(d Device) *nereidv1.WorkerDevice {
	return &nereidv1.WorkerDevice{Kind: state.Kind(d.Kind), Number: d.Number}
}

func versionValue(s reconcile.VersionStatus) *nereidv1.WorkerVersion {
	v := &nereidv1.WorkerVersion{
		Model: state.Ref(s.Ref),
		State: state.Instance(s.State), Cause: s.Cause, MemoryBytes: s.Memory,
	}
	if s.Cause != "" {
		v.Reason = string(s.Reason)
	}
	for _, g := range s.Groups {
		v.Groups = append(v.Groups, groupValue(g))
	}
	for i, in := range s.Instances {
		v.Instances = append(v.Instances, &nereidv1.WorkerInstance{
			Slot: in.Slot, Name: in.Name, Device: in.Device, State: state.Instance(s.InstanceState(i)), Cause: in.Away,
		})
	}
	return v
}
