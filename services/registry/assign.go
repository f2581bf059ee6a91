package registry

import (
	"context"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/obs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core/place"
	"github.com/nereid-serving/nereid/services/registry/core/publish"
)

// fence stands in the place of the model in the key of a worker's head.
const fence = ""

// place brings the assignments of the live workers up to date, and the causes
// of versions that fit none of them. It looks at the models of which anything
// has changed. While there is no worker the causes stay: they would only come
// and go with a worker that restarts.
func (l *leadership) place(ctx context.Context) error {
	l.forgetDrained()
	if !l.published || len(l.live()) == 0 {
		return nil
	}
	if err := l.raiseFences(ctx); err != nil {
		return err
	}
	maps.Copy(l.unplaced, l.conflicting)
	keys := l.keysToPlace(time.Now())
	stored := l.stored(keys)
	versions, causes := publish.Versions(stored, l.configured)
	versions = l.locate(append(versions, l.drainingVersions(keys)...))
	l.refuseConflicts(versions)
	placement := place.Assign(versions, l.placeWorkers(keys))
	maps.Copy(causes, placement.Unplaced)
	marks := publish.MarkUnplaced(stored, causes)
	if err := l.writeModels(ctx, marks); err != nil {
		return err
	}
	l.logMarks(marks, causes)
	if err := l.assign(ctx, keys, placement); err != nil {
		return err
	}
	if err := l.movePools(ctx, versions, placement); err != nil {
		return err
	}
	l.recordPlacement(keys, placement)
	return l.addFences(ctx)
}

// keysToPlace gives the models that may have to be placed. Those that need resources
// wait for the word of their pool's scheduler about them. After the store has lost what
// it held, those that were placed before wait for the workers to come back.
func (l *leadership) keysToPlace(now time.Time) []string {
	keys := slices.DeleteFunc(slices.Sorted(maps.Keys(l.unplaced)), l.awaitsRateLimit)
	if now.Before(l.workersDeadline) {
		return slices.DeleteFunc(keys, func(key string) bool { return l.restoredModels[key] })
	}
	return keys
}

// assign writes the assignments of models that are not as the placement says.
func (l *leadership) assign(ctx context.Context, keys []string, placement place.Placement) error {
	parts := publish.Parts(placement)
	var writes, adding []bus.Write[*nereidv1.AssignmentValue]
	for _, key := range keys {
		for worker := range l.workers.entries {
			part := parts[publish.Part{Worker: worker, Model: key}]
			switch w, needed := l.assignmentWrite(worker, key, part); {
			case needed && publish.Adds(l.assignments.of(worker, key), part):
				adding = append(adding, w)
			case needed:
				writes = append(writes, w)
			}
		}
	}
	writes = append(writes, adding...)
	if len(writes) == 0 {
		return nil
	}
	if err := l.writeAssignments(ctx, writes); err != nil {
		return err
	}
	l.log.Info("models assigned", zap.Int("assignments", len(writes)), zap.Uint64("revision", l.assignments.revision))
	return nil
}

// assignmentWrite gives the write after which a worker's assignment of a model names
// these versions, and whether one is needed. What was assigned is taken back by
// a value without versions: a deletion says nothing.
func (l *leadership) assignmentWrite(worker, key string, versions []place.Assigned) (w bus.Write[*nereidv1.AssignmentValue], needed bool) {
	owned := bus.OwnedKey(worker, key)
	entry, known := l.assignments.entries[owned]
	if publish.Assigns(entry.Value, versions) && !l.fenced(worker, entry) || !known && len(versions) == 0 {
		return w, false
	}
	value := publish.Assign(worker, versions, l.models.revision, l.epoch)
	return bus.Write[*nereidv1.AssignmentValue]{Key: owned, Value: value, Replaces: entry.Revision}, true
}

// fenced reports whether the worker has refused an assignment, as one that
// a deposed leader wrote.
func (l *leadership) fenced(worker string, entry bus.Entry[*nereidv1.AssignmentValue]) bool {
	barred := l.assignments.entries[bus.OwnedKey(worker, fence)]
	return entry.Value.GetLeaderEpoch() < barred.Value.GetLeaderEpoch() && entry.Revision > barred.Revision
}

// raiseFences makes the workers refuse what a deposed leader may still write: the
// fences that are there get this leadership's epoch before anything else is written.
func (l *leadership) raiseFences(ctx context.Context) error {
	return l.writeFences(ctx, func(worker string) bool {
		old := l.assignments.of(worker, fence)
		return old != nil && old.GetLeaderEpoch() < l.epoch
	})
}

// addFences writes the heads of workers that have none: all else is there.
func (l *leadership) addFences(ctx context.Context) error {
	return l.writeFences(ctx, func(worker string) bool { return l.assignments.of(worker, fence) == nil })
}

func (l *leadership) writeFences(ctx context.Context, needed func(worker string) bool) error {
	var writes []bus.Write[*nereidv1.AssignmentValue]
	for worker := range l.workers.entries {
		if needed(worker) {
			key := bus.OwnedKey(worker, fence)
			writes = append(writes, bus.Write[*nereidv1.AssignmentValue]{
				Key: key, Value: publish.Assign(worker, nil, l.models.revision, l.epoch), Replaces: l.assignments.entries[key].Revision,
			})
		}
	}
	if err := l.writeAssignments(ctx, writes); err != nil {
		return err
	}
	for _, w := range writes {
		worker := w.Value.GetWorkerId()
		l.log.Info("worker assigned", zap.String("worker_id", worker), zap.Int("models", len(l.assignments.byOwner[worker])-1))
	}
	return nil
}

// writeAssignments makes changes and returns the error of one that failed;
// those that came through are known.
func (l *leadership) writeAssignments(ctx context.Context, writes []bus.Write[*nereidv1.AssignmentValue]) (failed error) {
	for i, written := range l.buckets.assignments.Batch(ctx, writes) {
		switch w := writes[i]; {
		case written.Err != nil:
			failed = written.Err
		case w.Delete:
			l.assignments.drop(w.Key, w.Replaces)
		default:
			l.assignments.put(w.Key, w.Value, written.Revision)
		}
	}
	return failed
}

// revokes says of an assignment that it takes a model from its worker.
func revokes(key string, v *nereidv1.AssignmentValue) bool {
	return key != fence && len(v.GetVersions()) == 0
}

// deleteRevoked deletes the assignments that took models back from workers which have
// given them up, and said so: until then a deletion could be all that a worker
// receives of it.
func (l *leadership) deleteRevoked(ctx context.Context) error {
	var writes []bus.Write[*nereidv1.AssignmentValue]
	for key := range l.assignments.marked {
		worker, _ := bus.CutKey(key)
		entry := l.assignments.entries[key]
		if l.workers.entries[worker].Value.GetAssignmentRevision() >= entry.Revision {
			writes = append(writes, bus.Write[*nereidv1.AssignmentValue]{Key: key, Delete: true, Replaces: entry.Revision})
		}
	}
	return l.writeAssignments(ctx, writes)
}

func (l *leadership) logMarks(marks []publish.ModelWrite, causes map[infer.ModelRef]string) {
	for _, mark := range marks {
		for ref, cause := range causes {
			if ref.ID().Key() == mark.Key {
				l.log.Warn("model version fits no worker", append(obs.Model(ref), zap.String("cause", cause))...)
			}
		}
	}
}
