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
	// Config and Files are what to load if Err is nil; otherwise Err says why they cannot be loaded.
	Config *modelconfig.Config
	Files  source.Content
	Err    error
	// Bytes is the size of the files; 0 if unknown.
	Bytes int64
}

// Desired is what the worker knows about what it should run. It is not safe for concurrent use.
type Desired struct {
	models         map[string][]Version // by the model's key
	modelsRevision uint64

	assigned           map[infer.ModelID]Assignment // those that name versions
	assignmentRevision uint64                       // the highest seen
	head               Head                         // the last; without its revision if it was deleted
	synced             bool                         // the head is there
	// orphaned are models whose assignments were deleted. ahead are models whose assignments are based on a revision
	// of the models that has not arrived yet.
	orphaned, ahead map[infer.ModelID]bool

	// changed are the models whose desired state may have changed since they were last checked.
	changed map[infer.ModelID]bool

	modelsKnown, assignmentKnown bool
}

// NewDesired returns a Desired that knows nothing yet.
func NewDesired() *Desired {
	return &Desired{
		models: make(map[string][]Version), assigned: make(map[infer.ModelID]Assignment),
		orphaned: make(map[infer.ModelID]bool), ahead: make(map[infer.ModelID]bool), changed: make(map[infer.ModelID]bool),
	}
}

// SetModel sets the versions, one of which may have several generations, of the model with the given key. Without
// versions the model is forgotten.
func (d *Desired) SetModel(key string, versions []Version, revision uint64) {
	d.pass(revision)
	d.changed[infer.ParseModelID(key)] = true
	if len(versions) == 0 {
		delete(d.models, key)
		return
	}
	d.models[key] = versions
}

// ModelsKnown says that all models up to the revision have been set.
func (d *Desired) ModelsKnown(revision uint64) {
	d.pass(revision)
	d.modelsKnown = true
}

// pass records a revision of the models. The revision on which an assignment is based says which of its generations
// are past.
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
	// err is why instances of these groups cannot be created.
	err error
	// version is what to load; it is nil while the known models do not include this generation: then there is nothing
	// to do but wait.
	version *Version
	// past says that the version was removed from the models, or unloaded, after it was assigned: it is retained
	// until the next assignment, but not loaded.
	past bool
}

// refusal returns why the version cannot be loaded with these groups; nil if it can be tried.
func (w *want) refusal() error {
	if w.version.Err != nil {
		return w.version.Err
	}
	return w.err
}

// wants returns the assigned versions of a model, ordered by version.
func (d *Desired) wants(model infer.ModelID) []want {
	var list []want
	for _, a := range d.assigned[model].Versions {
		w := want{ref: a.Ref, groups: a.Groups, err: a.Err}
		d.resolve(&w)
		list = append(list, w)
	}
	slices.SortStableFunc(list, func(a, b want) int { return a.ref.Compare(b.ref) })
	// If a version is assigned twice, the first one counts.
	return slices.CompactFunc(list, func(a, b want) bool { return a.ref == b.ref })
}

// resolve finds the version of a want. A version that is not in the models, or was taken out of service, is retained
// where it runs: the registry removes it from the assignment once no gateway sends it requests any more.
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
	// If there are other generations of the version, either the models or the assignment is outdated.
	other := slices.ContainsFunc(versions, func(c Version) bool { return c.Ref.Version == w.ref.Version && c.Ref != w.ref })
	w.past = i >= 0 || !other && d.modelsRevision >= d.assigned[w.ref.ID()].ModelsRevision
}

// checkDevices refuses instances on devices that the model's backend does not support.
func checkDevices(c *modelconfig.Config, groups []Group) error {
	d := backends.Get(c.Backend)
	if !d.BuiltIn { // refused when it is opened, with advice on what to do instead
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
