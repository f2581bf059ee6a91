package registry

import (
	"context"
	"time"

	"go.uber.org/zap"
)

// forget deletes the assignments of workers that are gone for good and returns
// when the next one will be.
func (t *term) forget(ctx context.Context, now time.Time) (time.Duration, error) {
	next := t.cfg.WorkerGrace
	for worker, entry := range t.assignments.entries {
		if _, lives := t.workers.entries[worker]; lives {
			delete(t.vanished, worker)
			continue
		}
		since, known := t.vanished[worker]
		if !known {
			since = now
			t.vanished[worker] = now
		}
		if left := t.cfg.WorkerGrace - now.Sub(since); left > 0 {
			next = min(next, left)
			continue
		}
		if err := t.buckets.assignments.Delete(ctx, worker, entry.Revision); err != nil {
			return 0, err
		}
		t.assignments.drop(worker, entry.Revision)
		delete(t.vanished, worker)
		t.log.Info("assignment of a vanished worker deleted", zap.String("worker_id", worker))
	}
	return next, nil
}
