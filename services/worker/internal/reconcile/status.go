package reconcile

import (
	"cmp"
	"reflect"
	"slices"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// Status is what the worker runs. It is immutable.
type Status struct {
	// ModelsRevision and AssignmentRevision are those of the last desired
	// state that was reached: in which everything had come to its end.
	ModelsRevision, AssignmentRevision uint64
	// Versions are ordered by name, version and generation.
	Versions []VersionStatus
}

// VersionStatus is one content on the worker.
type VersionStatus struct {
	Ref   infer.ModelRef
	State infer.InstanceState
	// Cause is why it is unavailable or, where it is ready, why its instances
	// are not those of Groups; Reason is the cause's.
	Cause  string
	Reason errs.Reason
	// Instances are ordered by slot.
	Instances []InstanceStatus
	// Groups are those whose instances are there or, with a cause, cannot be;
	// nil until that is known.
	Groups []Group
}

// InstanceStatus is one instance, whose state is its version's.
type InstanceStatus struct {
	Slot         uint32
	Name, Device string
}

// publish tells what the worker runs, if that has changed.
func (r *Reconciler) publish(settled bool) {
	next := Status{
		ModelsRevision: r.status.ModelsRevision, AssignmentRevision: r.status.AssignmentRevision,
		Versions: r.versions(),
	}
	if settled {
		next.ModelsRevision, next.AssignmentRevision = r.desired.modelsRevision, r.desired.assignment.Revision
	}
	if reflect.DeepEqual(next, r.status) {
		return
	}
	r.status = next
	r.deps.Publish(next)
}

func (r *Reconciler) versions() []VersionStatus {
	var list []VersionStatus
	for _, c := range r.have {
		v := VersionStatus{Ref: c.ref, State: c.state, Cause: causeOf(c.cause), Reason: errs.Of(c.cause)}
		if c.state == infer.Ready && !c.resizing {
			v.Groups = c.groups
		}
		for _, l := range c.lanes {
			v.Instances = append(v.Instances, InstanceStatus{Slot: l.id.Slot, Name: l.name, Device: l.group.Place()})
		}
		slices.SortFunc(v.Instances, func(a, b InstanceStatus) int { return cmp.Compare(a.Slot, b.Slot) })
		list = append(list, v)
	}
	slices.SortFunc(list, func(a, b VersionStatus) int { return a.Ref.Compare(b.Ref) })
	return list
}
