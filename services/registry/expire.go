package registry

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// expireWorkers deletes the keys of workers that are gone for good and returns when
// the next one will be.
func (l *leadership) expireWorkers(ctx context.Context, now time.Time) (time.Duration, error) {
	for worker := range l.workers.entries {
		delete(l.lostWorkers, worker)
	}
	for _, owners := range []map[string]map[string]bool{l.assignments.byOwner, l.instances.byOwner} {
		for worker := range owners {
			_, lives := l.workers.entries[worker]
			if _, known := l.lostWorkers[worker]; !lives && !known {
				l.lostWorkers[worker] = now
				level, text := zap.InfoLevel, "worker is away: its assignments are kept for its return"
				if l.deadWorkers[worker] {
					level, text = zap.WarnLevel, "worker lost: its assignments are kept for its return"
				}
				l.log.Log(level, text, zap.String("worker_id", worker), zap.Duration("for", l.cfg.WorkerGrace))
			}
		}
	}
	next := l.cfg.WorkerGrace
	for worker, since := range l.lostWorkers {
		if left := l.cfg.WorkerGrace - now.Sub(since); left > 0 {
			next = min(next, left)
			continue
		}
		if err := l.deleteWorker(ctx, worker); err != nil {
			return 0, err
		}
		delete(l.lostWorkers, worker)
		delete(l.deadWorkers, worker)
		l.log.Info("assignments of a lost worker deleted", zap.String("worker_id", worker))
	}
	return next, nil
}

// deleteWorker deletes what a worker was assigned, first the head: while that is there
// so is all else. Then it deletes what the worker has left of what it ran.
func (l *leadership) deleteWorker(ctx context.Context, worker string) error {
	if key := bus.OwnedKey(worker, fence); l.assignments.entries[key].Value != nil {
		w := bus.Write[*nereidv1.AssignmentValue]{Key: key, Delete: true, Replaces: l.assignments.entries[key].Revision}
		if err := l.writeAssignments(ctx, []bus.Write[*nereidv1.AssignmentValue]{w}); err != nil {
			return err
		}
	}
	var assigned []bus.Write[*nereidv1.AssignmentValue]
	for name := range l.assignments.byOwner[worker] {
		key := bus.OwnedKey(worker, name)
		assigned = append(assigned, bus.Write[*nereidv1.AssignmentValue]{Key: key, Delete: true, Replaces: l.assignments.entries[key].Revision})
	}
	if err := l.writeAssignments(ctx, assigned); err != nil {
		return err
	}
	var said []bus.Write[*nereidv1.InstancesValue]
	for name := range l.instances.byOwner[worker] {
		key := bus.OwnedKey(worker, name)
		said = append(said, bus.Write[*nereidv1.InstancesValue]{Key: key, Delete: true, Replaces: l.instances.entries[key].Revision})
	}
	var failed error
	for i, written := range l.buckets.instances.Batch(ctx, said) {
		if written.Err != nil {
			failed = written.Err
			continue
		}
		l.instances.drop(said[i].Key, said[i].Replaces)
	}
	return failed
}
