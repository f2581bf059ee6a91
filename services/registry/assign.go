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
	"github.com/nereid-serving/nereid/services/registry/internal/place"
	"github.com/nereid-serving/nereid/services/registry/internal/publish"
)

// head stands in the place of the model in the key of a worker's head.
const head = ""

// place brings the assignments of the live workers up to date, and the causes
// of versions that fit none of them. It looks at the models of which anything
// has changed. While there is no worker the causes stay: they would only come
// and go with a worker that restarts.
func (t *term) place(ctx context.Context) error {
	t.drained()
	if !t.published || len(t.live()) == 0 {
		return nil
	}
	if err := t.bar(ctx); err != nil {
		return err
	}
	keys := t.due(time.Now())
	stored := t.stored(keys)
	versions, causes := publish.Versions(stored, t.cfg.Pools)
	versions = t.situate(append(versions, t.leaving(keys)...))
	placement := place.Assign(versions, t.sites(keys))
	maps.Copy(causes, placement.Unplaced)
	marks := publish.MarkUnplaced(stored, causes)
	if err := t.writeModels(ctx, marks); err != nil {
		return err
	}
	t.logMarks(marks, causes)
	if err := t.assign(ctx, keys, placement); err != nil {
		return err
	}
	if err := t.movePools(ctx, versions, placement); err != nil {
		return err
	}
	t.note(keys, placement)
	return t.complete(ctx)
}

// due gives the models that may have to be placed. After the store has lost what
// it held, those that were placed before wait for the workers to come back.
func (t *term) due(now time.Time) []string {
	keys := slices.Sorted(maps.Keys(t.unplaced))
	if now.Before(t.patience) {
		return slices.DeleteFunc(keys, func(key string) bool { return t.placed[key] })
	}
	return keys
}

// assign writes the assignments of models that are not as the placement says.
func (t *term) assign(ctx context.Context, keys []string, placement place.Placement) error {
	parts := publish.Parts(placement)
	var writes []bus.Write[*nereidv1.AssignmentValue]
	for _, key := range keys {
		for worker := range t.workers.entries {
			if w, needed := t.change(worker, key, parts[publish.Part{Worker: worker, Model: key}]); needed {
				writes = append(writes, w)
			}
		}
	}
	if len(writes) == 0 {
		return nil
	}
	if err := t.writeAssignments(ctx, writes); err != nil {
		return err
	}
	t.log.Info("models assigned", zap.Int("assignments", len(writes)), zap.Uint64("revision", t.assignments.revision))
	return nil
}

// change gives the write after which a worker's assignment of a model names
// these versions, and whether one is needed. What was assigned is taken back by
// a value without versions: a deletion says nothing.
func (t *term) change(worker, key string, versions []place.Assigned) (w bus.Write[*nereidv1.AssignmentValue], needed bool) {
	owned := bus.OwnedKey(worker, key)
	entry, known := t.assignments.entries[owned]
	if publish.Assigns(entry.Value, versions) && !t.refusable(worker, entry) || !known && len(versions) == 0 {
		return w, false
	}
	value := publish.Assign(worker, versions, t.models.revision, t.epoch)
	return bus.Write[*nereidv1.AssignmentValue]{Key: owned, Value: value, Replaces: entry.Revision}, true
}

// refusable reports whether the worker has refused an assignment, as one that
// a deposed leader wrote.
func (t *term) refusable(worker string, entry bus.Entry[*nereidv1.AssignmentValue]) bool {
	barred := t.assignments.entries[bus.OwnedKey(worker, head)]
	return entry.Value.GetLeaderEpoch() < barred.Value.GetLeaderEpoch() && entry.Revision > barred.Revision
}

// bar makes the workers refuse what a deposed leader may still write: the
// heads that are there get this term's epoch before anything else is written.
func (t *term) bar(ctx context.Context) error {
	return t.writeHeads(ctx, func(worker string) bool {
		old := t.assignments.of(worker, head)
		return old != nil && old.GetLeaderEpoch() < t.epoch
	})
}

// complete writes the heads of workers that have none: all else is there.
func (t *term) complete(ctx context.Context) error {
	return t.writeHeads(ctx, func(worker string) bool { return t.assignments.of(worker, head) == nil })
}

func (t *term) writeHeads(ctx context.Context, needed func(worker string) bool) error {
	var writes []bus.Write[*nereidv1.AssignmentValue]
	for worker := range t.workers.entries {
		if needed(worker) {
			key := bus.OwnedKey(worker, head)
			writes = append(writes, bus.Write[*nereidv1.AssignmentValue]{
				Key: key, Value: publish.Assign(worker, nil, t.models.revision, t.epoch), Replaces: t.assignments.entries[key].Revision,
			})
		}
	}
	if err := t.writeAssignments(ctx, writes); err != nil {
		return err
	}
	for _, w := range writes {
		worker := w.Value.GetWorkerId()
		t.log.Info("worker assigned", zap.String("worker_id", worker), zap.Int("models", len(t.assignments.owners[worker])-1))
	}
	return nil
}

// writeAssignments makes changes and returns the error of one that failed;
// those that came through are known.
func (t *term) writeAssignments(ctx context.Context, writes []bus.Write[*nereidv1.AssignmentValue]) (failed error) {
	for i, written := range t.buckets.assignments.Batch(ctx, writes) {
		switch w := writes[i]; {
		case written.Err != nil:
			failed = written.Err
		case w.Delete:
			t.assignments.drop(w.Key, w.Replaces)
		default:
			t.assignments.put(w.Key, w.Value, written.Revision)
		}
	}
	return failed
}

// takenBack says of an assignment that it takes a model from its worker.
func takenBack(key string, v *nereidv1.AssignmentValue) bool {
	return key != head && len(v.GetVersions()) == 0
}

// clear deletes the assignments that took models back from workers which have
// given them up, and said so: until then a deletion could be all that a worker
// hears of it.
func (t *term) clear(ctx context.Context) error {
	var writes []bus.Write[*nereidv1.AssignmentValue]
	for key := range t.assignments.marked {
		worker, _ := bus.CutKey(key)
		entry := t.assignments.entries[key]
		if t.workers.entries[worker].Value.GetAssignmentRevision() >= entry.Revision {
			writes = append(writes, bus.Write[*nereidv1.AssignmentValue]{Key: key, Delete: true, Replaces: entry.Revision})
		}
	}
	return t.writeAssignments(ctx, writes)
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
