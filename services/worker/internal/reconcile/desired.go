package reconcile

import (
	"slices"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/services/worker/internal/source"
)

// Version is one model version as it should be served.
type Version struct {
	Ref infer.ModelRef
	// Serve is false for a version that was taken out of service.
	Serve bool
	// Config and Files are what to load, if Err is nil; else Err says why it
	// cannot be.
	Config *modelconfig.Config
	Files  source.Content
	Err    error
	// Bytes is how much the files have; 0 if that is not known.
	Bytes int64
}

// Desired is what the worker knows of what it should run. It is not safe for
// concurrent use.
type Desired struct {
	models         map[string][]Version // by the model's key
	modelsRevision uint64

	assigned           map[infer.ModelID]Assignment // those that name versions
	assignmentRevision uint64                       // the highest entered
	head               Head                         // the last; without its revision if it was deleted
	synced             bool                         // the head is there
	// orphaned are models whose assignments were deleted, ahead those whose
	// assignments were made by models that are not entered yet.
	orphaned, ahead map[infer.ModelID]bool

	// changed are the models of which something else may be wanted than when
	// they were last looked at.
	changed map[infer.ModelID]bool

	modelsKnown, assignmentKnown bool
}

// NewDesired knows nothing yet.
func NewDesired() *Desired {
	return &Desired{
		models: make(map[string][]Version), assigned: make(map[infer.ModelID]Assignment),
		orphaned: make(map[infer.ModelID]bool), ahead: make(map[infer.ModelID]bool), changed: make(map[infer.ModelID]bool),
	}
}

// SetModel enters the versions, of which one may have several generations, of the
// model of a key; if there are none the model is forgotten.
func (d *Desired) SetModel(key string, versions []Version, revision uint64) {
	d.pass(revision)
	d.changed[infer.ParseModelID(key)] = true
	if len(versions) == 0 {
		delete(d.models, key)
		return
	}
	d.models[key] = versions
}

// ModelsKnown says that all models up to the revision have been entered.
func (d *Desired) ModelsKnown(revision uint64) {
	d.pass(revision)
	d.modelsKnown = true
}

// pass notes a revision of the models. The one by which an assignment was made
// says which of its generations are past.
func (d *Desired) pass(revision uint64) {
	d.modelsRevision = max(d.modelsRevision, revision)
	for model := range d.ahead {
		if d.modelsRevision >= d.assigned[model].ModelsRevision {
			d.changed[model] = true
			delete(d.ahead, model)
		}
	}
}

// known reports whether enough is known to act on.
func (d *Desired) known() bool { return d.modelsKnown && d.assignmentKnown }

// want is a version that should be ready.
type want struct {
	ref    infer.ModelRef
	groups []Group
	// err is why instances of these groups cannot be made.
	err error
	// version is what to load; it is nil while the models that are known do
	// not hold this generation: then there is nothing to do but to wait.
	version *Version
	// past says that the models have left the version, or unloaded it, since it was assigned:
	// it is kept until the next assignment, but not loaded.
	past bool
}

// refusal says why the version cannot be loaded with these groups; nil if it can
// be tried.
func (w *want) refusal() error {
	if w.version.Err != nil {
		return w.version.Err
	}
	return w.err
}

// wants returns the versions of a model that are assigned, ordered by version.
func (d *Desired) wants(model infer.ModelID) []want {
	var list []want
	for _, a := range d.assigned[model].Versions {
		w := want{ref: a.Ref, groups: a.Groups, err: a.Err}
		d.resolve(&w)
		list = append(list, w)
	}
	slices.SortStableFunc(list, func(a, b want) int { return a.ref.Compare(b.ref) })
	// Of a version that is assigned twice the first counts.
	return slices.CompactFunc(list, func(a, b want) bool { return a.ref == b.ref })
}

// resolve finds a want's version. One that is not in the models, or was taken out
// of service, is kept where it runs: the registry takes it out of the assignment
// when no gateway sends requests to it any more.
func (d *Desired) resolve(w *want) {
	versions := d.models[w.ref.ID().Key()]
	i := slices.IndexFunc(versions, func(c Version) bool { return c.Ref == w.ref })
	if i >= 0 && versions[i].Serve {
		w.version = &versions[i]
		if w.err == nil && w.version.Err == nil {
			w.err = checkDevices(w.version.Config, w.groups)
		}
		return
	}
	// Where there are other generations of the version, one of the two is older news.
	other := slices.ContainsFunc(versions, func(c Version) bool { return c.Ref.Version == w.ref.Version && c.Ref != w.ref })
	w.past = i >= 0 || !other && d.modelsRevision >= d.assigned[w.ref.ID()].ModelsRevision
}

// checkDevices refuses instances on devices that the model's backend does not
// run on.
func checkDevices(c *modelconfig.Config, groups []Group) error {
	d := backends.Get(c.Backend)
	if !d.BuiltIn { // refused when it is opened, with what to do instead
		return nil
	}
	for _, g := range groups {
		if g.Kind == modelconfig.KindGPU && !d.GPU {
			return errs.New(errs.LoadFailed, "instance group %s of model '%s' has kind KIND_GPU, but backend %s runs on CPUs: use KIND_CPU", g.Name, c.Name, d.Name).WithModel(c.Name)
		}
		if g.Kind != modelconfig.KindGPU && !d.CPU {
			return errs.New(errs.LoadFailed, "instance group %s of model '%s' is not on a GPU, but backend %s runs on GPUs alone: use KIND_GPU", g.Name, c.Name, d.Name).WithModel(c.Name)
		}
	}
	return nil
}
