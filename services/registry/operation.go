package registry

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/obs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/internal/artifact"
	"github.com/nereid-serving/nereid/services/registry/core/publish"
	"github.com/nereid-serving/nereid/services/registry/internal/repo"
	"github.com/nereid-serving/nereid/services/registry/core/catalog"
)

type operationKind uint8

const (
	operationLoad operationKind = iota + 1
	operationUnload
)

// operation is a load or unload that a caller waits for.
type operation struct {
	kind   operationKind
	id     infer.ModelID
	config string
	files  map[string][]byte
	done   chan error // takes the one outcome
	// above are the ensembles that need the model, from the one that a caller loads:
	// one that is loaded stays as it is then.
	above      []infer.ModelID
	dependents bool // what an unloaded ensemble alone used goes too

	// Owned by the leadership's loop.
	model     *catalog.Model // what is to be loaded, once it has been read
	written   bool            // the value says what is to become of the model
	completed bool            // the workers have come to an end with it
	attempts  int             // how often its files had changed when they were loaded
	// replaced are loaded versions whose end the answer waits for.
	replaced []infer.ModelRef
	outcome  error
	// The revision of the bucket models, and what the workers have said, that
	// all must know for an answer, and since when.
	revision uint64
	reports  reportRevisions
	since    time.Time
}

// waitsForWorkers reports whether the operation waits for workers.
func (o *operation) waitsForWorkers() bool {
	return o.kind == operationLoad && o.written && !o.completed
}

// key is the model's in the buckets.
func (o *operation) key() string { return o.id.Key() }

// completeOperation ends an operation, but for its answer: a caller that has it must find the
// outcome at every gateway.
func (l *leadership) completeOperation(o *operation, err error) {
	o.completed, o.outcome, o.since = true, err, time.Now()
	o.revision, o.reports = l.models.entries[o.key()].Revision, l.changed
}

// acknowledged reports whether all know the outcome, or need not be waited for.
func (l *leadership) acknowledged(o *operation) bool {
	return l.modelsAcknowledged(o.revision) && l.reportsAcknowledged(o.reports) || time.Since(o.since) >= gatewayAckTimeout
}

// startOperation starts an operation, or queues it behind those on the same model.
func (l *leadership) startOperation(ctx context.Context, o *operation) {
	if n := len(o.above); n > 0 && l.operations.awaits(o.id, o.above[n-1]) {
		o.done <- nil // the check of the ensembles reports the circle
		return
	}
	runs, err := l.operations.add(o)
	if err != nil {
		o.done <- err
		return
	}
	if runs {
		l.runOperation(ctx, o)
	}
}

// runOperation starts an operation that is the only one of its model.
func (l *leadership) runOperation(ctx context.Context, o *operation) {
	if o.kind != operationLoad {
		return
	}
	if len(o.above) == 0 || l.known(o.id) == nil {
		l.implicit[o.key()] = len(o.above) > 0
	}
	l.readModel(ctx, o)
}

// readModel reads what a load asks for, beside the loop.
func (l *leadership) readModel(ctx context.Context, o *operation) {
	o.model, o.written = nil, false
	kept := l.keptOverride(o)
	l.background(ctx, func(ctx context.Context) func() {
		m, err := l.read(ctx, o, kept)
		if err == nil {
			err = l.loadSteps(ctx, &m, o.above)
		}
		return func() {
			if err != nil {
				l.respond(ctx, o, err)
				return
			}
			logProblems(l.log, []catalog.Model{m})
			o.model = &m
		}
	})
}

// respond gives an operation its outcome, and starts the next on the same model. A step of an
// ensemble goes on with what serves, if its load fails.
func (l *leadership) respond(ctx context.Context, o *operation, err error) {
	l.swept = false
	l.log.Info("model control", append([]zap.Field{zap.Stringer("model", o.id), zap.Bool("load", o.kind == operationLoad)}, outcome(err)...)...)
	if len(o.above) > 0 && publish.Serving(l.models.entries[o.key()].Value, l.knowledge(false)) != nil {
		err = nil
	}
	o.done <- err
	if next := l.operations.end(o.key()); next != nil {
		l.runOperation(ctx, next)
	}
}

func outcome(err error) []zap.Field {
	if err == nil {
		return nil
	}
	return []zap.Field{zap.String("cause", errs.From(err).Msg)}
}

// applyOperations writes what the operations that can go on ask for.
func (l *leadership) applyOperations(ctx context.Context) error {
	if !l.published {
		return nil
	}
	for _, key := range l.operations.keys() {
		o := l.operations.running[key]
		var err error
		switch {
		case o.written:
		case o.kind == operationUnload:
			err = l.applyUnload(ctx, o)
		case o.model != nil:
			err = l.applyLoad(ctx, o)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *leadership) applyLoad(ctx context.Context, o *operation) error {
	old := publish.Model{Value: l.models.entries[o.key()].Value, Revision: l.models.entries[o.key()].Revision}
	*o.model = l.composed([]catalog.Model{*o.model})[0]
	w, changed := publish.DiffModel(*o.model, old, l.models.revision, l.knowledge(true))
	if changed {
		if err := l.writeFound(ctx, []publish.ModelWrite{w}); err != nil {
			return err
		}
	}
	if m := o.model; m.Problem != "" && !m.LoadFailed() {
		o.written = true
		l.completeOperation(o, notPolled(o.id.Name, errs.New(errs.ConfigInvalid, "%s", m.Problem)))
		return nil
	}
	value := l.models.entries[o.key()].Value
	for _, cause := range []string{value.GetProblem(), value.GetFailure()} {
		if cause != "" {
			o.written = true
			l.completeOperation(o, loadFailed(o.id, "load failed for model '"+o.id.String()+"': "+cause))
			return nil
		}
	}
	l.rejected.Remove(o.key())
	o.written = true
	return nil
}

func (l *leadership) applyUnload(ctx context.Context, o *operation) error {
	value := l.models.entries[o.key()].Value
	if !loaded(value) {
		l.respond(ctx, o, nil)
		return nil
	}
	if err := l.writeValue(ctx, o.key(), publish.Unloaded(value)); err != nil {
		return err
	}
	if o.dependents {
		if err := l.unloadUnused(ctx, value); err != nil {
			return err
		}
	}
	l.rejected.Remove(o.key())
	o.written = true
	l.completeOperation(o, nil)
	return nil
}

func loaded(v *nereidv1.ModelValue) bool {
	return v.GetProblem() != "" || slices.ContainsFunc(v.GetVersions(), func(v *nereidv1.ModelVersion) bool {
		return v.GetDesired() == nereidv1.DesiredState_DESIRED_STATE_SERVE
	})
}

// respondCompleted ends the operations whose result all must know and do.
func (l *leadership) respondCompleted(ctx context.Context) error {
	for _, key := range l.operations.keys() {
		if o := l.operations.running[key]; o.completed && l.acknowledged(o) && !l.reported(key, o.replaced) {
			l.respond(ctx, o, o.outcome)
		}
	}
	l.sweep(ctx)
	return nil
}

// sweepTime bounds the removal of shared files, for which the loop waits.
const sweepTime = 10 * time.Second

// sweep removes given files that no model is made of any more. No operation
// is under way, so that none is being written.
func (l *leadership) sweep(ctx context.Context) {
	if l.swept || l.cfg.Artifacts == "" || !l.published || l.waits() {
		return
	}
	l.swept = true
	used := make(map[string]bool)
	for _, entry := range l.models.entries {
		used[entry.Value.GetUrl()] = true
	}
	// Files that are shared are kept here too: the store may lose them.
	err := artifact.Sweep(l.cfg.Artifacts, func(dir string) bool {
		return used[repo.Local{}.URL(dir)] || l.cfg.ShareArtifacts && used[artifact.SharedURL(dir)]
	})
	if l.cfg.ShareArtifacts {
		ctx, cancel := context.WithTimeout(ctx, sweepTime)
		defer cancel()
		err = errors.Join(err, artifact.SweepShared(ctx, l.buckets.objects, func(url string) bool { return used[url] }))
	}
	if err != nil {
		l.log.Warn("files of models that are gone are not removed", obs.Err(err)...)
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
