package reconcile

import (
	"slices"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/services/worker/internal/source"
)

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
	// Bytes is how much the files have; 0 if that is not known.
	Bytes int64
}

// Desired is what the worker knows of what it should run. It is not safe for
// concurrent use.
type Desired struct {
	models         map[string][]Content // by the model's key
	modelsRevision uint64

	assigned           map[infer.ModelID]Assignment // those that name versions
	assignmentRevision uint64                       // the highest entered
	head               Head                         // the last; without its revision if it was deleted
	whole              bool                         // the head is there
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
		models: make(map[string][]Content), assigned: make(map[infer.ModelID]Assignment),
		orphaned: make(map[infer.ModelID]bool), ahead: make(map[infer.ModelID]bool), changed: make(map[infer.ModelID]bool),
	}
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

// pass notes a revision of the models. The one by which an assignment was made
// tells which of its contents are past.
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
	for _, a := range d.assigned[model].Versions {
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
	w.past = !known && d.modelsRevision >= d.assigned[w.ref.ID()].ModelsRevision
	return true
}
