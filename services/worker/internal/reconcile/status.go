package reconcile

import (
	"cmp"
	"reflect"
	"slices"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// Revisions are those of the last desired state that was reached: in which
// everything had come to its end.
type Revisions struct{ Models, Assignment uint64 }

// VersionStatus is one version on the worker. It is immutable.
type VersionStatus struct {
	Ref   infer.ModelRef
	State infer.InstanceState
	// Cause is why it is unavailable, how its loading goes on or, where it is ready, why its instances
	// are not those of Groups; Reason is the cause's.
	Cause  string
	Reason errs.Reason
	// Instances are ordered by slot.
	Instances []InstanceStatus
	// Groups are those whose instances are there or, with a cause, cannot be;
	// nil until that is known.
	Groups []Group
	// Memory is what it has taken with its instances, in bytes; 0 if that is
	// not known.
	Memory uint64
}

// InstanceStatus is one instance, whose state is its version's unless it is away.
type InstanceStatus struct {
	Slot         uint32
	Name, Device string
	// Away is why the instance is away or not ready; empty if it is ready.
	Away string
}

// InstanceState is that of the instance of an index.
func (s *VersionStatus) InstanceState(i int) infer.InstanceState {
	if s.State == infer.Ready && s.Instances[i].Away != "" {
		return infer.Unavailable
	}
	return s.State
}

// publish tells what the worker runs of a model, if that has changed.
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

// reach tells that nothing is left to do or to wait for.
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
