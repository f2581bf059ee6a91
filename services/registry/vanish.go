package registry

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// forget deletes the keys of workers that are gone for good and returns when
// the next one will be.
func (t *term) forget(ctx context.Context, now time.Time) (time.Duration, error) {
	for worker := range t.workers.entries {
		delete(t.vanished, worker)
	}
	for _, owners := range []map[string]map[string]bool{t.assignments.owners, t.instances.owners} {
		for worker := range owners {
			_, lives := t.workers.entries[worker]
			if _, known := t.vanished[worker]; !lives && !known {
				t.vanished[worker] = now
				t.log.Warn("worker is gone: what it had is kept for its return", zap.String("worker_id", worker), zap.Duration("for", t.cfg.WorkerGrace))
			}
		}
	}
	next := t.cfg.WorkerGrace
	for worker, since := range t.vanished {
		if left := t.cfg.WorkerGrace - now.Sub(since); left > 0 {
			next = min(next, left)
			continue
		}
		if err := t.erase(ctx, worker); err != nil {
			return 0, err
		}
		delete(t.vanished, worker)
		t.log.Info("assignments of a vanished worker deleted", zap.String("worker_id", worker))
	}
	return next, nil
}

// erase deletes what a worker was assigned, first the head: while that is there
// so is all else. Then it deletes what the worker has left of what it ran.
func (t *term) erase(ctx context.Context, worker string) error {
	if key := bus.OwnedKey(worker, head); t.assignments.entries[key].Value != nil {
		w := bus.Write[*nereidv1.AssignmentValue]{Key: key, Delete: true, Replaces: t.assignments.entries[key].Revision}
		if err := t.writeAssignments(ctx, []bus.Write[*nereidv1.AssignmentValue]{w}); err != nil {
			return err
		}
	}
	var assigned []bus.Write[*nereidv1.AssignmentValue]
	for name := range t.assignments.owners[worker] {
		key := bus.OwnedKey(worker, name)
		assigned = append(assigned, bus.Write[*nereidv1.AssignmentValue]{Key: key, Delete: true, Replaces: t.assignments.entries[key].Revision})
	}
	if err := t.writeAssignments(ctx, assigned); err != nil {
		return err
	}
	var said []bus.Write[*nereidv1.InstancesValue]
	for name := range t.instances.owners[worker] {
		key := bus.OwnedKey(worker, name)
		said = append(said, bus.Write[*nereidv1.InstancesValue]{Key: key, Delete: true, Replaces: t.instances.entries[key].Revision})
	}
	var failed error
	for i, written := range t.buckets.instances.Batch(ctx, said) {
		if written.Err != nil {
			failed = written.Err
			continue
		}
		t.instances.drop(said[i].Key, said[i].Replaces)
	}
	return failed
}
