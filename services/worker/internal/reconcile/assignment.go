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
	// HostPolicy names the settings of the host that the instances run with.
	HostPolicy string
}

// DeviceName returns the group's device as instances are labeled with it, such as
// cpu or gpu:0.
func (g Group) DeviceName() string {
	if g.Kind == modelconfig.KindGPU {
		return fmt.Sprintf("gpu:%d", g.Device)
	}
	return "cpu"
}

// deviceOf is the device of a version's instances: a worker has one, beside which there may be
// instances that choose theirs by themselves.
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

// Assignment is all that the worker should run of one model; with no versions
// nothing. It is never seen in part, and no decision about a model depends on
// another model: so a worker that has seen some of a change's assignments, and
// others not yet, does nothing that it should not.
type Assignment struct {
	Versions []Assigned
	// ModelsRevision is that of the models by which the assignment was made,
	// Revision its own.
	ModelsRevision, Revision uint64
	// LeaderEpoch is that of the registry's leader who made it.
	LeaderEpoch uint64
}

// Head says that all assignments are there, and who leads since when.
type Head struct{ Revision, LeaderEpoch uint64 }

// Assign enters the assignment of a model, which replaces the one before. It
// reports false, and changes nothing, if a leader has made it who had been
// deposed by then.
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

// Unassign says that the assignment of a model was deleted. It stays in force
// until the next head: the registry deletes those of workers that it believes
// gone, and one that is not goes on until it is told otherwise.
func (d *Desired) Unassign(model infer.ModelID, revision uint64) {
	d.assignmentRevision = max(d.assignmentRevision, revision)
	if _, ok := d.assigned[model]; ok {
		d.orphaned[model] = true
	}
}

// Orphan says that the store has lost all assignments. They stay in force until
// the next head: by then those that still hold have been entered again.
func (d *Desired) Orphan() {
	d.DropHead(0)
	for model := range d.assigned {
		d.orphaned[model] = true
	}
}

// SetHead enters the head. It reports false, and changes nothing, if a leader
// of a lower epoch than the one before has made it.
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

// DropHead says that the head was deleted, or is lost. Its epoch stays: those of
// later leaders are higher in any case.
func (d *Desired) DropHead(revision uint64) {
	d.assignmentRevision = max(d.assignmentRevision, revision)
	d.head.Revision, d.synced = 0, false
}

// AssignmentKnown says that what is assigned has been entered if anything is.
func (d *Desired) AssignmentKnown() { d.assignmentKnown = true }
