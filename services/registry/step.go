package registry

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/obs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/internal/publish"
	"github.com/nereid-serving/nereid/services/registry/internal/snapshot"
)

// step does what is to be done now and returns when to look again at the
// latest. What fails is tried again then; each part waits for the one before
// it, so that an assignment never names a model that is not there.
func (t *term) step(ctx context.Context, now time.Time) time.Duration {
	if err := t.restore(ctx, now); err != nil {
		t.failed(ctx, err)
		return t.cfg.Retry
	}
	t.scan(ctx, now)
	for _, part := range []func(context.Context) error{t.publish, t.whole, t.tell, t.writePools, t.apply, t.place, t.settle, t.place, t.clear, t.answer} {
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
	if t.swapping() || len(t.operations) > 0 || len(t.moving) > 0 {
		next = min(next, t.cfg.Retry) // a gateway may be late for good
		maps.Copy(t.unplaced, t.moving)
	}
	if left := t.patience.Sub(now); left > 0 {
		next = min(next, left)
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
	stored := t.stored(slices.Collect(maps.Keys(t.models.entries)))
	for key := range t.found.held {
		delete(stored, key)
	}
	writes := publish.DiffModels(t.found.snapshot(), stored, t.models.revision, t.knowledge(false))
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

// whole says that the buckets hold all that is served, and where, once.
func (t *term) whole(ctx context.Context) error {
	if t.announced || !t.published {
		return nil
	}
	if err := t.buckets.assignments.SetWhole(ctx); err != nil {
		return err
	}
	return t.buckets.models.SetWhole(ctx)
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

// finding is what a scan has found.
type finding struct {
	models []snapshot.Model
	// held are the keys of models whose values stay as they are.
	held map[string]bool
}

func (f *finding) snapshot() *snapshot.Snapshot { return &snapshot.Snapshot{Models: f.models} }
