package registry

import (
	"context"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/infer"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/internal/place"
	"github.com/nereid-serving/nereid/services/registry/internal/publish"
	"github.com/nereid-serving/nereid/services/registry/internal/swap"
)

// patience is for how long a swap waits for a gateway to say what it knows of
// the workers. One that is alive and does not may have stopped writing, and
// must not hold up the others.
const patience = 5 * time.Second

// readiness is when all versions of a model were ready.
type readiness struct {
	said  moment
	since time.Time
}

// drain is a content that left its model at a revision of the bucket models.
type drain struct {
	version  place.Version
	revision uint64
}

// observed joins what the live workers should run of a key's model and what
// they say.
func (t *term) observed(key string) swap.Workers {
	o := swap.NewWorkers()
	for worker := range t.assignments.names[key] {
		if t.workers.entries[worker].Value != nil {
			o.Add(t.assignments.of(worker, key), t.said(worker, key))
		}
	}
	for worker := range t.instances.names[key] {
		if !t.assignments.names[key][worker] {
			o.Add(nil, t.said(worker, key))
		}
	}
	return o
}

// knowledge is what decides, beside the values, what becomes of models.
func (t *term) knowledge(retry bool) publish.Observed {
	return publish.Observed{
		Failed: func(ref infer.ModelRef) bool { return t.observed(ref.ID().Key()).Failed(ref) },
		Stale:  func(ref infer.ModelRef) bool { return t.observed(ref.ID().Key()).Stale(ref) },
		Retry:  retry,
		Pools:  t.cfg.Pools,
	}
}

// settle ends the swaps whose versions are all ready, and those of which one
// has failed.
func (t *term) settle(ctx context.Context) error {
	if !t.published || !t.swapping() && len(t.operations) == 0 {
		return nil
	}
	open := maps.Clone(t.swaps)
	for key := range t.operations {
		open[key] = true
	}
	for _, key := range slices.Sorted(maps.Keys(open)) {
		if t.unplaced[key] {
			continue
		}
		value := t.models.entries[key].Value
		operation := t.operations[key]
		if operation != nil && !operation.waits() {
			operation = nil
		}
		if value.GetPrevious() == nil && operation == nil {
			continue
		}
		progress, causes := t.observed(key).Judge(value)
		if err := t.advance(ctx, value, operation, progress, causes); err != nil {
			return err
		}
	}
	return nil
}

func (t *term) advance(ctx context.Context, value *nereidv1.ModelValue, o *operation, progress swap.Progress, causes map[int64]string) error {
	id := publish.IDOf(value)
	key := id.Key()
	switch progress {
	case swap.Pending:
		delete(t.loaded, key)
		return nil
	case swap.Failed:
		return t.fallBack(ctx, value, o, causes)
	case swap.Ready:
	}
	since, known := t.loaded[key]
	if !known {
		since = readiness{said: t.changed, since: time.Now()}
		t.loaded[key] = since
	}
	if !t.heard(since.said) && time.Since(since.since) < patience {
		return nil
	}
	if value.GetPrevious() != nil {
		if err := t.put(ctx, key, publish.Swapped(value)); err != nil {
			return err
		}
		t.log.Info("model swapped", zap.Stringer("model", id))
	}
	delete(t.loaded, key)
	delete(t.refused, key)
	if o != nil {
		t.conclude(o, nil)
	}
	return nil
}

// fallBack leaves what served in its place.
func (t *term) fallBack(ctx context.Context, value *nereidv1.ModelValue, o *operation, causes map[int64]string) error {
	id := publish.IDOf(value)
	failure := swap.Failure(id, causes)
	delete(t.loaded, id.Key())
	if value.GetPrevious() != nil {
		if err := t.put(ctx, id.Key(), publish.FallBack(value, failure, causes)); err != nil {
			return err
		}
		if !t.stale(value) {
			t.refused[id.Key()] = value
		}
		t.log.Warn("new content of a model failed: the old one goes on", zap.Stringer("model", id), zap.String("cause", failure))
	}
	if o != nil {
		t.conclude(o, loadFailed(id, failure))
	}
	return nil
}

// stale reports whether a value failed because files had changed since they
// were read: what there is now may be good.
func (t *term) stale(v *nereidv1.ModelValue) bool {
	id := publish.IDOf(v)
	o := t.observed(id.Key())
	return slices.ContainsFunc(v.GetVersions(), func(version *nereidv1.ModelVersion) bool {
		return o.Stale(id.Version(version.GetVersion(), version.GetGeneration()))
	})
}

// put writes a model's value over the present one.
func (t *term) put(ctx context.Context, key string, value *nereidv1.ModelValue) error {
	return t.writeModels(ctx, []publish.ModelWrite{{Key: key, Value: value, Replaces: t.models.entries[key].Revision}})
}

// retire notes, before the value of a model is replaced, which contents leave
// it: they stay assigned until nobody sends requests to them.
func (t *term) retire(key string, next *nereidv1.ModelValue) {
	serving := publish.Serving(t.models.entries[key].Value, publish.Observed{})
	versions, err := publish.Placeable(infer.ParseModelID(key), serving.GetConfig(), serving.GetVersions(), t.cfg.Pools)
	if err != nil {
		return // nobody could load them
	}
	for _, v := range versions {
		if !publish.Holds(next, v.Model) {
			v.Bytes, v.Leaving = t.size(v.Model), true
			t.draining[v.Model] = drain{version: v, revision: t.models.revision + 1}
		}
	}
}

// leaving gives the contents of keys' models that are draining.
func (t *term) leaving(keys []string) []place.Version {
	var list []place.Version
	for ref, d := range t.draining {
		if _, found := slices.BinarySearch(keys, ref.ID().Key()); found {
			list = append(list, d.version)
		}
	}
	return list
}

// drained lets contents go that nobody sends requests to any more.
func (t *term) drained() {
	maps.DeleteFunc(t.draining, func(ref infer.ModelRef, d drain) bool {
		key := ref.ID().Key()
		gone := t.told(d.revision) || publish.Holds(t.models.entries[key].Value, ref)
		if gone {
			t.unplaced[key] = true
		}
		return gone
	})
}
