package registry

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/obs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/internal/artifact"
	"github.com/nereid-serving/nereid/services/registry/internal/publish"
	"github.com/nereid-serving/nereid/services/registry/internal/repo"
	"github.com/nereid-serving/nereid/services/registry/internal/snapshot"
)

type verb uint8

const (
	verbLoad verb = iota + 1
	verbUnload
)

// operation is a load or unload that somebody waits for.
type operation struct {
	verb   verb
	model  infer.ModelID
	config string
	files  map[string][]byte
	done   chan error // takes the one outcome

	// Owned by the term's loop.
	found   *snapshot.Model // what is to be loaded, once it has been read
	written bool            // the value says what is to become of the model
	over    bool            // the workers have come to an end with it
	outcome error
	// The revision of the bucket models, and what the workers have said, that
	// all must know for an answer, and since when.
	revision uint64
	said     moment
	since    time.Time
}

// waits reports whether the operation waits for workers.
func (o *operation) waits() bool { return o.verb == verbLoad && o.written && !o.over }

// key is the model's in the buckets.
func (o *operation) key() string { return o.model.Key() }

// conclude ends an operation, but for its answer: whoever has it must find the
// outcome at every gateway.
func (t *term) conclude(o *operation, err error) {
	o.over, o.outcome, o.since = true, err, time.Now()
	o.revision, o.said = t.models.entries[o.key()].Revision, t.changed
}

// known reports whether all know the outcome, or need not be waited for.
func (t *term) known(o *operation) bool {
	return t.told(o.revision) && t.heard(o.said) || time.Since(o.since) >= patience
}

// begin takes an operation up. There is one at a time of a model.
func (t *term) begin(ctx context.Context, o *operation) {
	if t.operations[o.key()] != nil {
		o.done <- errs.New(errs.LoadConflict, "a related model '%s' to a load/unload request is currently loading or unloading", o.model).WithModel(o.model.Name)
		return
	}
	t.operations[o.key()] = o
	if o.verb != verbLoad {
		return
	}
	t.background(ctx, func(ctx context.Context) func() {
		m, err := t.read(ctx, o)
		return func() {
			if err != nil {
				t.finish(o, err)
				return
			}
			logProblems(t.log, []snapshot.Model{m})
			o.found = &m
		}
	})
}

// finish gives an operation its outcome.
func (t *term) finish(o *operation, err error) {
	delete(t.operations, o.key())
	t.swept = false
	o.done <- err
	t.log.Info("model control", append([]zap.Field{zap.Stringer("model", o.model), zap.Bool("load", o.verb == verbLoad)}, outcome(err)...)...)
}

func outcome(err error) []zap.Field {
	if err == nil {
		return nil
	}
	return []zap.Field{zap.String("cause", errs.From(err).Msg)}
}

// apply writes what the operations that can go on ask for.
func (t *term) apply(ctx context.Context) error {
	if !t.published {
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(t.operations)) {
		o := t.operations[key]
		var err error
		switch {
		case o.written:
		case o.verb == verbUnload:
			err = t.applyUnload(ctx, o)
		case o.found != nil:
			err = t.applyLoad(ctx, o)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *term) applyLoad(ctx context.Context, o *operation) error {
	old := publish.Model{Value: t.models.entries[o.key()].Value, Revision: t.models.entries[o.key()].Revision}
	w, changed := publish.DiffModel(*o.found, old, t.models.revision, t.knowledge(true))
	if changed {
		if err := t.writeModels(ctx, []publish.ModelWrite{w}); err != nil {
			return err
		}
	}
	value := t.models.entries[o.key()].Value
	for _, cause := range []string{value.GetProblem(), value.GetFailure()} {
		if cause != "" {
			o.written = true
			t.conclude(o, loadFailed(o.model, "load failed for model '"+o.model.String()+"': "+cause))
			return nil
		}
	}
	delete(t.refused, o.key())
	o.written = true
	return nil
}

func (t *term) applyUnload(ctx context.Context, o *operation) error {
	value := t.models.entries[o.key()].Value
	if !loaded(value) {
		t.finish(o, nil)
		return nil
	}
	if err := t.put(ctx, o.key(), publish.Unloaded(value)); err != nil {
		return err
	}
	delete(t.refused, o.key())
	o.written = true
	t.conclude(o, nil)
	return nil
}

func loaded(v *nereidv1.ModelValue) bool {
	return v.GetProblem() != "" || slices.ContainsFunc(v.GetVersions(), func(v *nereidv1.ModelVersion) bool {
		return v.GetDesired() == nereidv1.DesiredState_DESIRED_STATE_SERVE
	})
}

// answer ends the operations whose result all must know and do.
func (t *term) answer(ctx context.Context) error {
	for _, key := range slices.Sorted(maps.Keys(t.operations)) {
		if o := t.operations[key]; o.over && t.known(o) {
			t.finish(o, o.outcome)
		}
	}
	t.sweep(ctx)
	return nil
}

// sweepTime bounds the removal of shared files, for which the loop waits.
const sweepTime = 10 * time.Second

// sweep removes given files that no model is made of any more. No operation
// is under way, so that nobody writes any.
func (t *term) sweep(ctx context.Context) {
	if t.swept || t.cfg.Artifacts == "" || !t.published || t.waits() {
		return
	}
	t.swept = true
	used := make(map[string]bool)
	for _, entry := range t.models.entries {
		used[entry.Value.GetUrl()] = true
	}
	// Files that are shared are kept here too: the store may lose them.
	err := artifact.Sweep(t.cfg.Artifacts, func(dir string) bool {
		return used[repo.Local{}.URL(dir)] || t.cfg.ShareArtifacts && used[artifact.SharedURL(dir)]
	})
	if t.cfg.ShareArtifacts {
		ctx, cancel := context.WithTimeout(ctx, sweepTime)
		defer cancel()
		err = errors.Join(err, artifact.SweepShared(ctx, t.buckets.objects, func(url string) bool { return used[url] }))
	}
	if err != nil {
		t.log.Warn("files of models that are gone are not removed", obs.Err(err)...)
	}
}

func loadFailed(model infer.ModelID, text string) *errs.Error {
	return errs.New(errs.LoadFailed, "%s", text).WithModel(model.Name)
}

// notPolled says why a load found nothing to load. The status is Triton's,
// whose message ends before the cause.
func notPolled(model string, cause error) *errs.Error {
	return errs.Wrap(errs.LoadUnknownModel, cause, "%s: %s", unknownModel(model).Msg, errs.From(cause).Msg).WithModel(model)
}

func unknownModel(model string) *errs.Error {
	return errs.New(errs.LoadUnknownModel, "failed to load '%s', failed to poll from model repository", model).WithModel(model)
}
