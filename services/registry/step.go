package registry

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/obs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/internal/place"
	"github.com/nereid-serving/nereid/services/registry/internal/publish"
	"github.com/nereid-serving/nereid/services/registry/internal/snapshot"
)

// step does what is to be done now and returns when to look again at the
// latest. What fails is tried again then; each part waits for the one before
// it, so that an assignment never names a model that is not there.
func (t *term) step(ctx context.Context, now time.Time) time.Duration {
	t.scan(ctx, now)
	for _, part := range []func(context.Context) error{t.publish, t.tell, t.apply, t.place, t.settle, t.place, t.answer} {
		if err := part(ctx); err != nil {
			t.failed(ctx, err)
			return t.cfg.Retry
		}
	}
	next, err := t.forget(ctx, now)
	if err != nil {
		t.failed(ctx, err)
		return t.cfg.Retry
	}
	if t.swapping() || len(t.operations) > 0 {
		next = min(next, t.cfg.Retry) // a gateway may be late for good
	}
	return t.scans.wait(now, next)
}

// failed logs an error that is not the term's end. A conflict is none: the
// watch brings what the other writer wrote, and the step is done again.
func (t *term) failed(ctx context.Context, err error) {
	if ctx.Err() == nil && !errors.Is(err, bus.ErrConflict) {
		t.log.Warn("state not written", obs.Err(err)...)
	}
}

// publish brings the bucket models to hold what was found.
func (t *term) publish(ctx context.Context) error {
	if t.found == nil {
		return nil
	}
	stored := t.stored()
	for key := range t.found.held {
		delete(stored, key)
	}
	writes := publish.DiffModels(t.found.snapshot(), stored, t.models.revision, t.knowledge(nil, false))
	if err := t.writeModels(ctx, writes); err != nil {
		return err
	}
	if t.models.revision == 0 {
		if err := t.firstRevision(ctx); err != nil {
			return err
		}
	}
	if len(writes) > 0 || !t.published {
		t.log.Info("models published", zap.Int("models", len(t.found.models)), zap.Int("written", len(writes)))
	}
	t.published, t.found = true, nil
	return nil
}

// firstRevision gives an empty bucket a revision, by a value that is there for
// a moment under the one name that no model has. Without it nobody could tell
// an empty repository from one that was not read yet.
func (t *term) firstRevision(ctx context.Context) error {
	const noModel = ""
	revision, err := t.buckets.models.Create(ctx, noModel, &nereidv1.ModelValue{Schema: nereidv1.Schema, Problem: "the repository is empty"})
	if err != nil {
		return err
	}
	if err := t.buckets.models.Delete(ctx, noModel, revision); err != nil {
		return err
	}
	t.models.drop(noModel, revision)
	t.models.revision = max(t.models.revision, revision)
	return nil
}

// tell announces the whole scan, once.
func (t *term) tell(ctx context.Context) error {
	if t.announced || !t.published {
		return nil
	}
	if err := t.announce(ctx, t.models.revision); err != nil {
		return err
	}
	t.announced = true
	t.log.Info("scan announced", zap.Uint64("revision", t.models.revision))
	return nil
}

// place brings the assignments of the live workers up to date, and the causes
// of versions that fit none of them. While there is no worker the causes stay:
// they would only come and go with a worker that restarts.
func (t *term) place(ctx context.Context) error {
	t.drained()
	if t.placed || !t.published {
		return nil
	}
	versions, causes := publish.Versions(t.stored())
	live := publish.Workers(t.live())
	if len(live) == 0 {
		return nil
	}
	placement := place.Assign(append(versions, t.leaving()...), live)
	for ref, cause := range placement.Unplaced {
		causes[ref] = cause
	}
	marks := publish.MarkUnplaced(t.stored(), causes)
	if err := t.writeModels(ctx, marks); err != nil {
		return err
	}
	t.logMarks(marks, causes)
	if err := t.assign(ctx, placement); err != nil {
		return err
	}
	t.placed = true
	return nil
}

func (t *term) assign(ctx context.Context, placement place.Placement) error {
	for _, w := range publish.DiffAssignments(placement, t.assigned(), t.models.revision, t.epoch) {
		revision, err := write(ctx, t.buckets.assignments, w.Worker, w.Value, w.Replaces)
		if err != nil {
			return err
		}
		t.assignments.put(w.Worker, w.Value, revision)
		t.log.Info("worker assigned", zap.String("worker_id", w.Worker), zap.Int("versions", len(w.Value.GetVersions())), zap.Uint64("revision", revision))
	}
	return nil
}

func (t *term) logMarks(marks []publish.ModelWrite, causes map[infer.ModelRef]string) {
	for _, mark := range marks {
		for ref, cause := range causes {
			if ref.ID().Key() == mark.Key {
				t.log.Warn("model version fits no worker", append(obs.Model(ref), zap.String("cause", cause))...)
			}
		}
	}
}

// finding is what a scan has found.
type finding struct {
	models []snapshot.Model
	// held are the keys of models whose values stay as they are.
	held map[string]bool
}

func (f *finding) snapshot() *snapshot.Snapshot { return &snapshot.Snapshot{Models: f.models} }
