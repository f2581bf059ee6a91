package reconcile

import (
	"fmt"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

// Group asks for instances on one device.
type Group struct {
	// Name is the instances' name without their number.
	Name    string
	Kind    modelconfig.DeviceKind
	Device  int
	Count   int
	Passive bool
	// HostPolicy names the host policy that the instances run with.
	HostPolicy string
}

// DeviceName returns the group's device as in the labels of instances, such as cpu or gpu:0.
func (g Group) DeviceName() string {
	if g.Kind == modelconfig.KindGPU {
		return fmt.Sprintf("gpu:%d", g.Device)
	}
	return "cpu"
}

// deviceOf returns the device of a version's instances. A worker has one device; instances that choose their own may
// exist in addition.
func deviceOf(groups []Group) backend.Device {
	for _, g := range groups {
		if g.Kind == modelconfig.KindGPU {
			return backend.Device{Kind: g.Kind, Number: g.Device}
		}
	}
	return backend.Device{Kind: modelconfig.KindCPU}
}

// Assigned is a version that the worker should run, and its instances.
type Assigned struct {
	Ref    infer.ModelRef
	Groups []Group
	// Err says why the instances cannot be made; nil if they can be tried.
	Err error
}

// Assignment is everything that the worker should run of one model; without versions, nothing. It is never seen
// partially, and no decision about a model depends on another model. A worker that has seen only some of a change's
// assignments therefore does nothing wrong.
type Assignment struct {
	Versions []Assigned
	// ModelsRevision is the revision of the models on which the assignment is based, Revision its own.
	ModelsRevision, Revision uint64
	// LeaderEpoch is the epoch of the registry's leader that made it.
	LeaderEpoch uint64
}

// Head says that all assignments are there, and which leader has written it at which revision.
type Head struct{ Revision, LeaderEpoch uint64 }

// Assign sets the assignment of a model, replacing the previous one. It reports false, and changes nothing, if the
// leader that made it had already been deposed.
func (d *Desired) Assign(model infer.ModelID, a Assignment) bool {
	d.assignmentRevision = max(d.assignmentRevision, a.Revision)
	if a.LeaderEpoch < d.head.LeaderEpoch && a.Revision > d.head.Revision {
		return false
	}
	d.changed[model] = true
	delete(d.orphaned, model)
	delete(d.ahead, model)
	if a.ModelsRevision > d.modelsRevision {
		d.ahead[model] = true
	}
	if d.assigned[model] = a; len(a.Versions) == 0 {
		delete(d.assigned, model)
	}
	return true
}

// Unassign says that the assignment of a model was deleted. The assignment stays in force until the next head: the
// registry deletes the assignments of workers that it believes gone, and a worker that is not gone continues until
// told otherwise.
func (d *Desired) Unassign(model infer.ModelID, revision uint64) {
	d.assignmentRevision = max(d.assignmentRevision, revision)
	if _, ok := d.assigned[model]; ok {
		d.orphaned[model] = true
	}
}

// Orphan says that the store has lost all assignments. They stay in force until the next head: by then those that
// still apply have been set again.
func (d *Desired) Orphan() {
	d.DropHead(0)
	for model := range d.assigned {
		d.orphaned[model] = true
	}
}

// SetHead sets the head. It reports false, and changes nothing, if a leader of a lower epoch than that of the current
// head made it.
func (d *Desired) SetHead(h Head) bool {
	d.assignmentRevision = max(d.assignmentRevision, h.Revision)
	if h.LeaderEpoch < d.head.LeaderEpoch {
		return false
	}
	d.head, d.synced = h, true
	for model := range d.orphaned {
		delete(d.assigned, model)
		d.changed[model] = true
	}
	clear(d.orphaned)
	return true
}

// DropHead says that the head was deleted or lost. Its epoch is retained: later leaders have higher ones in any case.
func (d *Desired) DropHead(revision uint64) {
	d.assignmentRevision = max(d.assignmentRevision, revision)
	d.head.Revision, d.synced = 0, false
}

// AssignmentKnown says that all assignments, if there are any, have been set.
func (d *Desired) AssignmentKnown() { d.assignmentKnown = true }
