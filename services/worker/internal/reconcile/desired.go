package reconcile

import (
	"fmt"
	"slices"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/services/worker/internal/source"
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

// Place returns the group's device as instances are labelled with it, such as
// cpu or gpu:0.
func (g Group) Place() string {
	if g.Kind == modelconfig.KindGPU {
		return fmt.Sprintf("gpu:%d", g.Device)
	}
	return "cpu"
}

// Assigned is a content that the worker should run, and its instances.
type Assigned struct {
	Ref    infer.ModelRef
	Groups []Group
	// Err says why the instances cannot be made; nil if they can be tried.
	Err error
}

// Assignment is all that the worker should run.
type Assignment struct {
	Versions []Assigned
	// ModelsRevision is that of the models by which the assignment was made,
	// Revision its own.
	ModelsRevision, Revision uint64
	// LeaderEpoch is that of the registry's leader who made it.
	LeaderEpoch uint64
}

// Content is one model version as it should be served.
type Content struct {
	Ref infer.ModelRef
	// Serve is false for a version that was taken out of service.
	Serve bool
	// Config and Files are what to load, if Err is nil; else Err says why it
	// cannot be.
	Config *modelconfig.Config
	Files  source.Content
	Err    error
}

// Desired is what the worker knows of what it should run. It is not safe for
// concurrent use.
type Desired struct {
	models         map[string][]Content // by the model's key
	modelsRevision uint64
	assignment     Assignment
	assigned       map[infer.ModelID][]Assigned // the assignment's versions by model
	// changed are the models of which something else may be wanted than when
	// they were last looked at.
	changed map[infer.ModelID]bool

	modelsKnown, assignmentKnown bool
}

// NewDesired knows nothing yet.
func NewDesired() *Desired {
	return &Desired{models: make(map[string][]Content), changed: make(map[infer.ModelID]bool)}
}

// SetModel enters the contents, which may be several of one version, of the
// model of a key; if there are none the model is forgotten.
func (d *Desired) SetModel(key string, contents []Content, revision uint64) {
	d.pass(revision)
	d.changed[infer.ParseModelID(key)] = true
	if len(contents) == 0 {
		delete(d.models, key)
		return
	}
	d.models[key] = contents
}

// ModelsKnown says that all models up to the revision have been entered.
func (d *Desired) ModelsKnown(revision uint64) {
	d.pass(revision)
	d.modelsKnown = true
}

// pass notes a revision of the models. The one by which the assignment was
// made tells which of its contents are past.
func (d *Desired) pass(revision uint64) {
	before := d.modelsRevision
	d.modelsRevision = max(before, revision)
	if by := d.assignment.ModelsRevision; before < by && d.modelsRevision >= by {
		d.changeAll()
	}
}

// changeAll marks all models that are assigned.
func (d *Desired) changeAll() {
	for model := range d.assigned {
		d.changed[model] = true
	}
}

// Assign enters an assignment, which replaces the one before. It reports
// false, and changes nothing, if a leader of a lower epoch than one seen has
// made it.
func (d *Desired) Assign(a Assignment) bool {
	if a.LeaderEpoch < d.assignment.LeaderEpoch {
		return false
	}
	d.changeAll()
	d.assignment, d.assigned = a, make(map[infer.ModelID][]Assigned)
	for _, v := range a.Versions {
		d.assigned[v.Ref.ID()] = append(d.assigned[v.Ref.ID()], v)
	}
	d.changeAll()
	return true
}

// AssignmentKnown says that the assignment has been entered if there is one.
func (d *Desired) AssignmentKnown() { d.assignmentKnown = true }

// known reports whether enough is known to act on.
func (d *Desired) known() bool { return d.modelsKnown && d.assignmentKnown }

// want is a content that should be ready.
type want struct {
	ref    infer.ModelRef
	groups []Group
	// err is why instances of these groups cannot be made.
	err error
	// content is what to load; it is nil while the models that are known do
	// not hold this generation: then there is nothing to do but to wait.
	content *Content
	// past says that the models have left the version since it was assigned:
	// it is kept until the next assignment, but not loaded.
	past bool
}

// wants returns the contents of a model that are assigned and should serve,
// ordered by version.
func (d *Desired) wants(model infer.ModelID) []want {
	var list []want
	for _, a := range d.assigned[model] {
		if w := (want{ref: a.Ref, groups: a.Groups, err: a.Err}); d.resolve(&w) {
			list = append(list, w)
		}
	}
	slices.SortStableFunc(list, func(a, b want) int { return a.ref.Compare(b.ref) })
	// Of a content that is assigned twice the first counts.
	return slices.CompactFunc(list, func(a, b want) bool { return a.ref == b.ref })
}

// resolve finds a want's content. It reports whether it is wanted indeed: one
// that was taken out of service is not. A content that is not in the models is
// kept where it runs, since the registry takes it out of the assignment when
// nobody sends requests to it any more.
func (d *Desired) resolve(w *want) bool {
	contents := d.models[w.ref.ID().Key()]
	if i := slices.IndexFunc(contents, func(c Content) bool { return c.Ref == w.ref }); i >= 0 {
		w.content = &contents[i]
		return w.content.Serve
	}
	// Where there are other contents of the version, one of the two is older news.
	known := slices.ContainsFunc(contents, func(c Content) bool { return c.Ref.Version == w.ref.Version })
	w.past = !known && d.modelsRevision >= d.assignment.ModelsRevision
	return true
}
