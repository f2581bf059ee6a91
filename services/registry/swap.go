package registry

import (
	"context"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/infer"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core/place"
	"github.com/nereid-serving/nereid/services/registry/core/publish"
	"github.com/nereid-serving/nereid/services/registry/core/catalog"
	"github.com/nereid-serving/nereid/services/registry/core/rollout"
)

// gatewayAckTimeout is for how long a swap waits for a gateway to say what it knows of
// the workers. One that is alive and does not may have stopped writing, and
// must not hold up the others.
const gatewayAckTimeout = 5 * time.Second

// longestRetryPause bounds how long a content whose load failed for a cause that may pass
// waits for the next try.
const longestRetryPause = 5 * time.Minute

// readySince is when all versions of a model were ready.
type readySince struct {
	reports reportRevisions
	since   time.Time
}

// drain is a loaded version that left its model at a revision of the bucket models.
type drain struct {
	version  place.Version
	revision uint64
}

// observed joins what the live workers should run of a key's model and what
// they say.
func (l *leadership) observed(key string) rollout.Workers {
	o := rollout.NewWorkers()
	for worker := range l.assignments.byName[key] {
		if l.workers.entries[worker].Value != nil {
			o.Add(l.assignments.of(worker, key), l.reportOf(worker, key))
		}
	}
	for worker := range l.instances.byName[key] {
		if !l.assignments.byName[key][worker] {
			o.Add(nil, l.reportOf(worker, key))
		}
	}
	return o
}

// knowledge is what decides, beside the values, what becomes of models.
func (l *leadership) knowledge(retry bool) publish.Observed {
	return publish.Observed{
		Failed: func(ref infer.ModelRef) bool { return l.observed(ref.ID().Key()).Failed(ref) },
		Stale:  func(ref infer.ModelRef) bool { return l.observed(ref.ID().Key()).Stale(ref) },
		Retry:  retry,
		Pools:  l.configured,

		UnloadDuplicates: l.cfg.Control == ControlPoll,
		MarkRemoved:      l.published, // not those that are gone since another led
	}
}

// advanceSwaps ends the swaps whose versions are all ready, and those of which one
// has failed.
func (l *leadership) advanceSwaps(ctx context.Context) error {
	if !l.published || !l.swapping() && len(l.operations.running) == 0 && len(l.firstLoads) == 0 {
		return nil
	}
	open := maps.Clone(l.swaps)
	maps.Copy(open, l.firstLoads)
	for key := range l.operations.running {
		open[key] = true
	}
	for _, key := range slices.Sorted(maps.Keys(open)) {
		if l.unplaced[key] {
			continue
		}
		value := l.models.entries[key].Value
		operation := l.operations.running[key]
		if operation != nil && operation.attempts > 0 && !operation.written {
			continue // it reads the files that failed again
		}
		if operation != nil && !operation.waitsForWorkers() {
			operation = nil
		}
		if value.GetPrevious() == nil && operation == nil && !l.firstLoads[key] {
			continue
		}
		progress, causes := l.observed(key).Evaluate(value)
		if err := l.advance(ctx, value, operation, progress, causes); err != nil {
			return err
		}
	}
	return nil
}

func (l *leadership) advance(ctx context.Context, value *nereidv1.ModelValue, o *operation, progress rollout.Progress, causes map[int64]string) error {
	id := publish.IDOf(value)
	key := id.Key()
	switch progress {
	case rollout.Pending:
		delete(l.readySwaps, key)
		return nil
	case rollout.Failed:
		return l.rollBack(ctx, value, o, causes)
	case rollout.Ready:
		delete(l.firstLoads, key)
	}
	if value.GetPrevious() == nil && o == nil {
		return nil
	}
	since, known := l.readySwaps[key]
	if !known {
		since = readySince{reports: l.changed, since: time.Now()}
		l.readySwaps[key] = since
	}
	if !l.reportsAcknowledged(since.reports) && time.Since(since.since) < gatewayAckTimeout {
		return nil
	}
	if value.GetPrevious() != nil {
		if err := l.writeValue(ctx, key, publish.Swapped(value)); err != nil {
			return err
		}
		if o != nil && publish.SameButInstances(value) {
			o.replaced = publish.Replaced(value)
		}
		l.log.Info("model swapped", zap.Stringer("model", id))
	}
	delete(l.readySwaps, key)
	l.rejected.Remove(key)
	if o != nil {
		l.completeOperation(o, nil)
	}
	return nil
}

// rollBack leaves what served in its place.
func (l *leadership) rollBack(ctx context.Context, value *nereidv1.ModelValue, o *operation, causes map[int64]string) error {
	id := publish.IDOf(value)
	failure := rollout.Failure(id, causes)
	delete(l.readySwaps, id.Key())
	if o != nil && o.attempts < tornReads && anyVersion(value, l.observed(id.Key()).FilesChanged) {
		o.attempts++
		l.log.Info("files changed while they were loaded: they are read again", zap.Stringer("model", id))
		l.readModel(ctx, o)
		return nil
	}
	if value.GetPrevious() != nil {
		if err := l.writeValue(ctx, id.Key(), publish.RolledBack(value, failure, causes)); err != nil {
			return err
		}
		l.log.Warn("model failed to load: the versions that serve go on", l.reject(value, failure)...)
	} else if l.firstLoads[id.Key()] {
		if err := l.withdraw(ctx, value, failure); err != nil {
			return err
		}
	}
	if o != nil {
		l.completeOperation(o, loadFailed(id, failure))
	}
	return nil
}

// withdraw unloads the other versions of a first load of which one has failed on
// every worker that it is assigned to, or could not be read. A version that waits
// for a place, or runs on some worker, withdraws nothing.
func (l *leadership) withdraw(ctx context.Context, value *nereidv1.ModelValue, failure string) error {
	id := publish.IDOf(value)
	delete(l.firstLoads, id.Key())
	_, failed := l.observed(id.Key()).Evaluate(value)
	serves := false
	for _, v := range value.GetVersions() {
		ref := id.Version(v.GetVersion(), v.GetGeneration())
		if bad := v.GetDigest() == "" || l.observed(id.Key()).Failed(ref); !bad {
			serves = serves || publish.Contains(value, ref)
			delete(failed, v.GetVersion())
		}
	}
	if len(failed) == 0 || !serves {
		return nil
	}
	fields := l.reject(value, failure)
	if err := l.writeValue(ctx, id.Key(), publish.Withdrawn(value, failed)); err != nil {
		return err
	}
	l.log.Warn("model failed to load: its other versions are unloaded", fields...)
	return nil
}

// reject records that a value failed to load, and returns what the log says of it.
func (l *leadership) reject(v *nereidv1.ModelValue, failure string) []zap.Field {
	id := publish.IDOf(v)
	fields := []zap.Field{zap.Stringer("model", id), zap.String("cause", failure)}
	pause := l.rejected.Add(id.Key(), v, l.observed(id.Key()).Passing(v), time.Now())
	if pause > 0 && l.cfg.Control == ControlPoll {
		fields = append(fields, zap.Duration("retry_in", pause))
	}
	return fields
}

// barred reports whether a model that was found has a content that failed to load and is
// not to be loaded again yet. old is the model's value.
func (l *leadership) barred(m catalog.Model, old *nereidv1.ModelValue) bool {
	key := m.ID().Key()
	if old != nil && old.GetPrevious() == nil && sameModel(m, old) && anyVersion(old, l.observed(key).Stale) {
		l.rejected.Add(key, old, true, time.Now()) // no swap has ended that would have told
		return !l.rejected.Due(key, time.Now())
	}
	rejected := l.rejected.Value(key)
	if rejected == nil || !sameModel(m, rejected) || l.rejected.Due(key, time.Now()) {
		return false
	}
	return publish.IsWithdrawn(old) || publish.Serving(old, l.knowledge(false)) != nil // else its cause is better than that of what is gone
}

func anyVersion(v *nereidv1.ModelValue, holds func(infer.ModelRef) bool) bool {
	id := publish.IDOf(v)
	return slices.ContainsFunc(v.GetVersions(), func(version *nereidv1.ModelVersion) bool {
		return holds(id.Version(version.GetVersion(), version.GetGeneration()))
	})
}

// reported reports whether a live worker still has one of the loaded versions of a key's model.
func (l *leadership) reported(key string, refs []infer.ModelRef) bool {
	return len(refs) > 0 && slices.ContainsFunc(refs, func(ref infer.ModelRef) bool { return len(l.observed(key).Reported[ref]) > 0 })
}

// writeValue writes a model's value over the present one.
func (l *leadership) writeValue(ctx context.Context, key string, value *nereidv1.ModelValue) error {
	return l.writeModels(ctx, []publish.ModelWrite{{Key: key, Value: value, Replaces: l.models.entries[key].Revision}})
}

// drainReplaced notes, before the value of a model is replaced, which loaded versions leave
// it: they stay assigned until no gateway sends requests to them.
func (l *leadership) drainReplaced(key string, next *nereidv1.ModelValue) {
	serving := publish.Serving(l.models.entries[key].Value, publish.Observed{})
	versions, err := publish.Placeable(infer.ParseModelID(key), serving.GetConfig(), serving.GetVersions(), l.configured)
	if err != nil {
		return // no worker could load them
	}
	for _, v := range versions {
		if !publish.Contains(next, v.Model) {
			v.Bytes, v.Replaced = l.instanceBytes(v.Model), true
			l.draining[v.Model] = drain{version: v, revision: l.models.revision + 1}
		}
	}
}

// drainingVersions gives the loaded versions of keys' models that are draining.
func (l *leadership) drainingVersions(keys []string) []place.Version {
	var list []place.Version
	for ref, d := range l.draining {
		if _, found := slices.BinarySearch(keys, ref.ID().Key()); found {
			list = append(list, d.version)
		}
	}
	return list
}

// forgetDrained forgets loaded versions that no gateway sends requests to any more.
func (l *leadership) forgetDrained() {
	maps.DeleteFunc(l.draining, func(ref infer.ModelRef, d drain) bool {
		key := ref.ID().Key()
		gone := l.modelsAcknowledged(d.revision) || publish.Contains(l.models.entries[key].Value, ref)
		if gone {
			l.unplaced[key] = true
		}
		return gone
	})
}
