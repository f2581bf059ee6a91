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
	"github.com/nereid-serving/nereid/services/registry/core/publish"
	"github.com/nereid-serving/nereid/services/registry/core/catalog"
)

// step does what is to be done now and returns when to look again at the
// latest. What fails is tried again then; each part waits for the one before
// it, so that an assignment never names a model that is not there.
func (l *leadership) step(ctx context.Context, now time.Time) time.Duration {
	if err := l.restore(ctx, now); err != nil {
		l.failed(ctx, err)
		return l.cfg.Retry
	}
	l.scan(ctx, now)
	for _, part := range []func(context.Context) error{l.publish, l.markSynced, l.announceScan, l.writePools, l.applyOperations, l.place, l.advanceSwaps, l.place, l.deleteRevoked, l.respondCompleted} {
		if err := part(ctx); err != nil {
			l.failed(ctx, err)
			return l.cfg.Retry
		}
	}
	next, err := l.expireWorkers(ctx, now)
	if err != nil {
		l.failed(ctx, err)
		return l.cfg.Retry
	}
	if l.operations.unloads() && l.published {
		return 0 // one that was queued is to be applied
	}
	if l.swapping() || len(l.operations.running) > 0 || len(l.migrating) > 0 {
		next = min(next, l.cfg.Retry) // a gateway may be late for good
		maps.Copy(l.unplaced, l.migrating)
	}
	if left := l.workersDeadline.Sub(now); left > 0 {
		next = min(next, left)
	}
	return l.scans.wait(now, next)
}

// failed logs an error that is not the leadership's end. A conflict is none: the
// watch brings what the other writer wrote, and the step is done again.
func (l *leadership) failed(ctx context.Context, err error) {
	if ctx.Err() == nil && !errors.Is(err, bus.ErrConflict) {
		l.log.Warn("state not written", obs.Err(err)...)
	}
}

// publish brings the bucket models to hold what was found.
func (l *leadership) publish(ctx context.Context) error {
	if l.scanned == nil {
		return nil
	}
	stored := l.stored(slices.Collect(maps.Keys(l.models.entries)))
	for key := range l.scanned.retained {
		delete(stored, key)
	}
	writes := publish.DiffModels(l.scanned.snapshot(), stored, l.models.revision, l.knowledge(false))
	if err := l.writeFound(ctx, writes); err != nil {
		return err
	}
	if l.models.revision == 0 {
		if err := l.firstRevision(ctx); err != nil {
			return err
		}
	}
	if len(writes) > 0 || !l.published {
		l.log.Info("models published", zap.Int("models", len(l.scanned.models)), zap.Int("written", len(writes)))
	}
	l.published, l.scanned = true, nil
	return nil
}

// firstRevision gives an empty bucket a revision, by a value that is there for
// a moment under the one name that no model has. Without it an
// empty repository would look like one that was not read yet.
func (l *leadership) firstRevision(ctx context.Context) error {
	const noModel = ""
	revision, err := l.buckets.models.Create(ctx, noModel, &nereidv1.ModelValue{Schema: nereidv1.Schema, Problem: "the repository is empty"})
	if err != nil {
		return err
	}
	if err := l.buckets.models.Delete(ctx, noModel, revision); err != nil {
		return err
	}
	l.models.drop(noModel, revision)
	l.models.revision = max(l.models.revision, revision)
	return nil
}

// markSynced says that the buckets hold all that is served, and where, once.
func (l *leadership) markSynced(ctx context.Context) error {
	if l.announced || !l.published {
		return nil
	}
	if err := l.buckets.assignments.MarkSynced(ctx); err != nil {
		return err
	}
	return l.buckets.models.MarkSynced(ctx)
}

// announceScan announces the whole scan, once.
func (l *leadership) announceScan(ctx context.Context) error {
	if l.announced || !l.published {
		return nil
	}
	if err := l.announce(ctx, l.models.revision); err != nil {
		return err
	}
	l.announced = true
	l.log.Info("scan announced", zap.Uint64("revision", l.models.revision))
	return nil
}

// scanResult is what a scan has found.
type scanResult struct {
	models []catalog.Model
	// retained are the keys of models whose values stay as they are.
	retained map[string]bool
}

func (f *scanResult) snapshot() *catalog.Snapshot { return &catalog.Snapshot{Models: f.models} }
