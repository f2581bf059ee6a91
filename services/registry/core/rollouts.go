package core

import (
	"maps"
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core/catalog"
	"github.com/nereid-serving/nereid/services/registry/core/place"
	"github.com/nereid-serving/nereid/services/registry/core/publish"
	"github.com/nereid-serving/nereid/services/registry/core/rollout"
)

// rollouts are the models on their way to another generation. A model's value has what served
// before until all versions of the new one are ready, or one has failed.
type rollouts struct {
	updating map[string]bool // by the model's key
	// firstLoads are models with several versions of which none has served before, until all
	// are ready or one has failed.
	firstLoads map[string]bool
	// ready says, by key, since when all versions of a model are ready.
	ready    map[string]readySince
	rejected *rollout.Rejections
	// draining are loaded versions that left the models, until no gateway sends requests to
	// them.
	draining map[infer.ModelRef]drain
}

// readySince is when all versions of a model were ready, and what workers had reported then.
type readySince struct {
	reports reports
	since   time.Time
}

// drain is a loaded version that left its model at a revision of the bucket models.
type drain struct {
	version  place.Version
	revision uint64
	since    time.Time
}

func newRollouts(first, longest time.Duration) rollouts {
	return rollouts{
		updating: make(map[string]bool), firstLoads: make(map[string]bool), ready: make(map[string]readySince),
		rejected: rollout.NewRejections(first, longest), draining: make(map[infer.ModelRef]drain),
	}
}

func (r *rollouts) any() bool { return len(r.updating)+len(r.firstLoads)+len(r.draining) > 0 }

// follow follows a model's value.
func (r *rollouts) follow(key string, v *nereidv1.ModelValue) {
	if delete(r.updating, key); v.GetPrevious() != nil {
		r.updating[key] = true
	}
	if v == nil {
		delete(r.firstLoads, key)
		delete(r.ready, key)
	}
}

// firstLoad records whether a model loads for the first time.
func (r *rollouts) firstLoad(key string, first bool) {
	if delete(r.firstLoads, key); first {
		r.firstLoads[key] = true
	}
}

// end ends the wait for a model whose content was loaded, or rolled back.
func (r *rollouts) end(key string) {
	delete(r.ready, key)
	delete(r.firstLoads, key)
}

// knowledge is what decides, beside the values, what becomes of models.
func (c *Core) knowledge(retry bool) publish.Observed {
	return publish.Observed{
		Failed: func(ref infer.ModelRef) bool { return c.observed(ref.ID().Key()).Failed(ref) },
		Stale:  func(ref infer.ModelRef) bool { return c.observed(ref.ID().Key()).Stale(ref) },
		Retry:  retry,
		Pools:  c.cfg.Pools,

		UnloadDuplicates: c.cfg.Poll,
		MarkRemoved:      c.published, // not those that are gone since another led
	}
}

// advanceRollouts ends the updates whose versions are all ready, and those of which one has
// failed.
func (c *Core) advanceRollouts() {
	if !c.published || len(c.rollouts.updating)+len(c.rollouts.firstLoads)+len(c.operations.running) == 0 {
		return
	}
	open := maps.Clone(c.rollouts.updating)
	maps.Copy(open, c.rollouts.firstLoads)
	for key, o := range c.operations.running {
		if o.phase == loading {
			open[key] = true
		}
	}
	for _, key := range slices.Sorted(maps.Keys(open)) {
		o := c.operations.running[key]
		if c.placement.due[key] || o != nil && o.attempts > 0 && o.phase < loading {
			continue // it is to be placed, or read again, since its files have changed
		}
		if o != nil && o.phase != loading {
			o = nil
		}
		value := c.model(key)
		switch progress, causes := c.observed(key).Evaluate(value); progress {
		case rollout.Pending:
			delete(c.rollouts.ready, key)
		case rollout.Failed:
			c.rollBack(value, o, causes)
		case rollout.Ready:
			delete(c.rollouts.firstLoads, key)
			c.complete(key, value, o)
		}
	}
}

// complete ends an update whose versions are all ready, when all gateways know that, and the
// load that waits for it; o is nil for none.
func (c *Core) complete(key string, value *nereidv1.ModelValue, o *operation) {
	if value.GetPrevious() == nil && o == nil {
		return
	}
	since, known := c.rollouts.ready[key]
	if !known {
		since = readySince{reports: c.fleet.changed, since: c.now}
		c.rollouts.ready[key] = since
	}
	if !c.reportsAcknowledged(since.reports) && c.now.Sub(since.since) < c.cfg.AckTimeout {
		return
	}
	ended := func() {
		c.rollouts.end(key)
		c.rollouts.rejected.Remove(key)
		if o != nil {
			c.conclude(o, nil)
		}
	}
	if value.GetPrevious() == nil {
		ended()
		return
	}
	c.write(c.replace(key, publish.Swapped(value)), func() {
		if o != nil && publish.SameButInstances(value) {
			o.replaced = publish.Replaced(value)
		}
		c.note(Info, "model swapped", field("model", publish.IDOf(value)))
		ended()
	})
}

// rollBack leaves what served in its place. A load whose files changed under it reads them
// again first.
func (c *Core) rollBack(value *nereidv1.ModelValue, o *operation, causes map[int64]string) {
	id := publish.IDOf(value)
	key, failure := id.Key(), rollout.Failure(id, causes)
	delete(c.rollouts.ready, key)
	if o != nil && o.attempts < c.cfg.Reads && anyVersion(value, c.observed(key).FilesChanged) {
		o.attempts++
		c.note(Info, "files changed while they were loaded: they are read again", field("model", id))
		c.read(o)
		return
	}
	ended := func() {
		if o != nil {
			c.conclude(o, loadFailed(id, failure))
		}
	}
	switch {
	case value.GetPrevious() != nil:
		fields := c.reject(value, failure)
		c.write(c.replace(key, publish.RolledBack(value, failure, causes)), func() {
			c.note(Warn, "model failed to load: the versions that serve go on", fields...)
			ended()
		})
	case c.rollouts.firstLoads[key]:
		c.withdraw(value, failure, ended)
	default:
		ended()
	}
}

// withdraw unloads the other versions of a first load of which one has failed on every worker
// that it is assigned to, or could not be read. A version that waits for a place, or runs on
// some worker, withdraws nothing.
func (c *Core) withdraw(value *nereidv1.ModelValue, failure string, ended func()) {
	id := publish.IDOf(value)
	observed := c.observed(id.Key())
	_, failed := observed.Evaluate(value)
	serves := false
	for _, v := range value.GetVersions() {
		ref := id.Version(v.GetVersion(), v.GetGeneration())
		if bad := v.GetDigest() == "" || observed.Failed(ref); !bad {
			serves = serves || publish.Contains(value, ref)
			delete(failed, v.GetVersion())
		}
	}
	if len(failed) == 0 || !serves {
		c.rollouts.end(id.Key())
		ended()
		return
	}
	fields := c.reject(value, failure)
	c.write(c.replace(id.Key(), publish.Withdrawn(value, failed)), func() {
		c.rollouts.end(id.Key())
		c.note(Warn, "model failed to load: its other versions are unloaded", fields...)
		ended()
	})
}

// reject records that a value failed to load, and returns what the log says of it.
func (c *Core) reject(v *nereidv1.ModelValue, failure string) []Field {
	id := publish.IDOf(v)
	fields := []Field{field("model", id), field("cause", failure)}
	pause := c.rollouts.rejected.Add(id.Key(), v, c.observed(id.Key()).Passing(v), c.now)
	if pause > 0 && c.cfg.Poll {
		fields = append(fields, field("retry_in", pause))
	}
	return fields
}

// barred reports whether a model that was found has a content that failed to load and is not
// to be loaded again yet. old is the model's value.
func (c *Core) barred(m catalog.Model, old *nereidv1.ModelValue) bool {
	key, rejected := m.ID().Key(), c.rollouts.rejected
	if old != nil && old.GetPrevious() == nil && SameModel(m, old) && anyVersion(old, c.observed(key).Stale) {
		rejected.Add(key, old, true, c.now) // no update has ended that would have recorded it
		return !rejected.Due(key, c.now)
	}
	failed := rejected.Value(key)
	if failed == nil || !SameModel(m, failed) || rejected.Due(key, c.now) {
		return false
	}
	return publish.IsWithdrawn(old) || publish.Serving(old, c.knowledge(false)) != nil // else its cause is better than that of what is gone
}

func anyVersion(v *nereidv1.ModelValue, holds func(infer.ModelRef) bool) bool {
	id := publish.IDOf(v)
	return slices.ContainsFunc(v.GetVersions(), func(version *nereidv1.ModelVersion) bool {
		return holds(id.Version(version.GetVersion(), version.GetGeneration()))
	})
}

// drainReplaced records, before a model's value is replaced at a revision, which loaded
// versions leave it: they stay assigned until no gateway sends requests to them.
func (c *Core) drainReplaced(key string, next *nereidv1.ModelValue, revision uint64) {
	serving := publish.Serving(c.model(key), publish.Observed{})
	versions, err := publish.Placeable(infer.ParseModelID(key), serving.GetConfig(), serving.GetVersions(), c.cfg.Pools)
	if err != nil {
		return // no worker could load them
	}
	for _, v := range versions {
		if !publish.Contains(next, v.Model) {
			v.Bytes, v.Replaced = c.instanceBytes(v.Model), true
			c.rollouts.draining[v.Model] = drain{version: v, revision: revision, since: c.now}
		}
	}
}

// drainingOf gives the loaded versions of keys' models that are draining.
func (c *Core) drainingOf(keys []string) []place.Version {
	var list []place.Version
	for ref, d := range c.rollouts.draining {
		if _, found := slices.BinarySearch(keys, ref.ID().Key()); found {
			list = append(list, d.version)
		}
	}
	return list
}

// forgetDrained forgets loaded versions that no gateway or scheduler sends requests to any
// more. One that is alive and does not report so is waited for until LagTimeout. Then the old
// generation goes, and requests that still name it fail with model_not_ready.
func (c *Core) forgetDrained() {
	late := make(map[string]uint64)
	maps.DeleteFunc(c.rollouts.draining, func(ref infer.ModelRef, d drain) bool {
		key := ref.ID().Key()
		behind := c.behind(d.revision)
		gone := len(behind) == 0 || publish.Contains(c.model(key), ref)
		if left := d.since.Add(c.cfg.LagTimeout).Sub(c.now); !gone && left <= 0 {
			gone = true
			for _, id := range behind {
				late[id] = max(late[id], d.revision)
			}
		} else if !gone {
			c.wake(left)
		}
		if gone {
			c.placement.touch(key)
		}
		return gone
	})
	if len(late)+len(c.fleet.lagging) > 0 {
		c.lag(late)
	}
}
