package reconcile

import (
	"cmp"
	"reflect"
	"slices"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// Revisions are the revisions of the last desired state that was reached: the state in which there was nothing left
// to do.
type Revisions struct{ Models, Assignment uint64 }

// VersionStatus is one version on the worker. It is immutable.
type VersionStatus struct {
	Ref   infer.ModelRef
	State infer.InstanceState
	// Cause is why the version is unavailable, the progress of its loading or, if it is ready, why its instances are
	// not those of Groups. Reason is the cause's.
	Cause  string
	Reason errs.Reason
	// Instances are ordered by slot.
	Instances []InstanceStatus
	// Groups are those whose instances exist or, with a cause, cannot be created; nil until that is known.
	Groups []Group
	// Memory is how many bytes the version and its instances use; 0 if unknown.
	Memory uint64
}

// InstanceStatus is one instance. Its state is its version's, unless it is away.
type InstanceStatus struct {
	Slot         uint32
	Name, Device string
	// Away is why the instance is away or not ready; empty if it is ready.
	Away string
}

// InstanceState returns the state of instance i.
func (s *VersionStatus) InstanceState(i int) infer.InstanceState {
	if s.State == infer.Ready && s.Instances[i].Away != "" {
		return infer.Unavailable
	}
	return s.State
}

// publish reports what the worker runs of a model, if that has changed.
func (r *Reconciler) publish(model infer.ModelID) {
	next := r.versions(model)
	if reflect.DeepEqual(next, r.published[model]) {
		return
	}
	if r.published[model] = next; next == nil {
		delete(r.published, model)
	}
	r.deps.Publish(model, next)
}

// reach reports that nothing is left to do or to wait for.
func (r *Reconciler) reach() {
	next := Revisions{r.desired.modelsRevision, r.desired.assignmentRevision}
	if next != r.reached {
		r.reached = next
		r.deps.Reached(next)
	}
}

func (r *Reconciler) versions(model infer.ModelID) []VersionStatus {
	var list []VersionStatus
	for _, c := range r.have[model] {
		v := VersionStatus{Ref: c.ref, State: c.state, Cause: causeOf(c.cause), Reason: errs.Of(c.cause)}
		if c.state == infer.Loading {
			v.Cause, v.Reason = c.progress.Text, c.progress.Reason
		}
		if c.state == infer.Ready && !c.resizing {
			v.Groups, v.Memory = c.groups, c.memory
		}
		for _, l := range c.slots {
			v.Instances = append(v.Instances, InstanceStatus{Slot: l.id.Slot, Name: l.name, Device: l.group.DeviceName(), Away: c.awayCause(l)})
		}
		slices.SortFunc(v.Instances, func(a, b InstanceStatus) int { return cmp.Compare(a.Slot, b.Slot) })
		list = append(list, v)
	}
	slices.SortFunc(list, func(a, b VersionStatus) int { return a.Ref.Compare(b.Ref) })
	return list
}
