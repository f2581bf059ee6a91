package core

import (
	"maps"
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/state"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core/rollout"
)

// fleet is what is known of workers, gateways and schedulers beside their values.
type fleet struct {
	// changed is what the workers reported last since the leadership began.
	changed reports
	// capacity are the revisions at which workers came or changed what they offer, reportedAt
	// when something came last of a worker's part of a model.
	capacity   map[string]uint64
	reportedAt map[Key]time.Time
	// lost are assigned workers that are gone, and since when; dead those of them whose lease
	// has expired under this leadership. Others have stopped, or were gone before it.
	lost map[string]time.Time
	dead map[string]bool
	// lagging are the revisions of the bucket models that gateways and schedulers have not
	// applied in time, by their ids.
	lagging map[string]uint64
}

// reports is a moment in the revisions of what the workers report. Those of the buckets would
// not do: a renewal of a lease raises one, which no gateway receives.
type reports struct{ workers, instances uint64 }

func newFleet() fleet {
	return fleet{
		capacity: make(map[string]uint64), reportedAt: make(map[Key]time.Time),
		lost: make(map[string]time.Time), dead: make(map[string]bool), lagging: make(map[string]uint64),
	}
}

// workerChanged distinguishes a worker that comes, goes or changes in what assignments are
// made for from one that reports its progress.
func (c *Core) workerChanged(e Changed) bool {
	before, known := c.workers.entries[e.Key]
	if !c.workers.apply(e) {
		return false
	}
	worker, after := e.Key.Name, c.workers.get(e.Key)
	if delete(c.fleet.dead, worker); e.Deleted && e.Expired {
		c.fleet.dead[worker] = true
	}
	if c.workers.caughtUp {
		c.fleet.changed.workers = max(c.fleet.changed.workers, e.Revision)
	}
	if !e.Deleted && known && sameCapacity(before.value, after) {
		waits := c.waits() || len(c.placement.revoked) > 0 || len(c.memory.releasing[worker]) > 0
		c.releaseApplied(worker)
		return waits
	}
	if c.fleet.capacity[worker] = e.Revision; e.Deleted {
		delete(c.fleet.capacity, worker)
	}
	c.touchWorker(worker, before.value, after)
	c.out.WorkersChanged = true
	return true
}

// sameCapacity reports whether two values of a worker differ in nothing that placement
// depends on.
func sameCapacity(a, b *nereidv1.WorkerValue) bool {
	return a.GetEpoch() == b.GetEpoch() && a.GetDevice().GetKind() == b.GetDevice().GetKind() &&
		a.GetDevice().GetNumber() == b.GetDevice().GetNumber() && maps.Equal(a.GetLabels(), b.GetLabels()) &&
		a.GetMemoryBudgetBytes() == b.GetMemoryBudgetBytes() && a.GetLeaving() == b.GetLeaving() &&
		(a.GetDeviceProblem() == "") == (b.GetDeviceProblem() == "") && maps.Equal(a.GetLacking(), b.GetLacking())
}

// instancesChanged takes what a worker reports of a model, which matters only while something
// waits for it.
func (c *Core) instancesChanged(e Changed) bool {
	if !c.instances.apply(e) {
		return false
	}
	if c.instances.caughtUp {
		c.fleet.changed.instances = max(c.fleet.changed.instances, e.Revision)
	}
	if c.fleet.reportedAt[e.Key] = c.now; e.Deleted {
		delete(c.fleet.reportedAt, e.Key)
	}
	more := c.recordMemory(e.Key.Name, c.instances.get(e.Key))
	if c.placement.migrating[e.Key.Name] || more {
		c.placement.touch(e.Key.Name)
	}
	return c.waits() || more
}

// serviceChanged reports whether anything waits for gateways and schedulers.
func (c *Core) serviceChanged() bool {
	c.placement.touchMigrating()
	return c.waits() || len(c.fleet.lagging) > 0
}

// report gives what a worker reports of a model; nil if nothing that counts: a report of
// an earlier incarnation does not.
func (c *Core) report(worker, model string) *nereidv1.InstancesValue {
	lease := c.workers.get(Key{Name: worker})
	if said := c.instances.get(Key{worker, model}); lease != nil && said.GetEpoch() == lease.GetEpoch() {
		return said
	}
	return nil
}

// observed joins what the live workers should run of a key's model and what they report.
func (c *Core) observed(key string) rollout.Workers {
	o := rollout.NewWorkers()
	for worker := range c.assignments.byName[key] {
		if c.workers.get(Key{Name: worker}) != nil {
			o.Add(c.part(worker, key), c.report(worker, key))
		}
	}
	for worker := range c.instances.byName[key] {
		if !c.assignments.byName[key][worker] {
			o.Add(nil, c.report(worker, key))
		}
	}
	return o
}

// reported reports whether a live worker still has one of the loaded versions of a key's model.
func (c *Core) reported(key string, refs []infer.ModelRef) bool {
	return len(refs) > 0 && slices.ContainsFunc(refs, func(ref infer.ModelRef) bool { return len(c.observed(key).Reported[ref]) > 0 })
}

// readyAt reports whether a loaded version is ready on a worker and all gateways know. A
// gateway that does not report so for long is not waited for.
func (c *Core) readyAt(worker string, ref infer.ModelRef) bool {
	k := Key{worker, ref.ID().Key()}
	ready := slices.ContainsFunc(c.report(k.Owner, k.Name).GetVersions(), func(v *nereidv1.WorkerVersion) bool {
		return v.GetState() == nereidv1.State_STATE_READY && state.RefOf(v.GetModel()) == ref
	})
	if !ready {
		return false
	}
	said := reports{workers: c.fleet.capacity[worker], instances: c.instances.entries[k].revision}
	return c.reportsAcknowledged(said) || c.now.Sub(c.fleet.reportedAt[k]) >= c.cfg.AckTimeout
}

// readyAnywhere reports whether a live worker has a loaded version ready.
func (c *Core) readyAnywhere(ref infer.ModelRef) bool {
	for worker := range c.assignments.byName[ref.ID().Key()] {
		if c.readyAt(worker, ref) {
			return true
		}
	}
	return false
}

// behind gives the gateways and schedulers that have not applied a revision of the bucket
// models.
func (c *Core) behind(revision uint64) (ids []string) {
	for _, t := range []*table[*nereidv1.ServiceValue]{&c.gateways, &c.schedulers} {
		for k, e := range t.entries {
			if e.value.GetAppliedRevision() < revision {
				ids = append(ids, k.Name)
			}
		}
	}
	return ids
}

// reportsAcknowledged reports whether all gateways know what the workers had reported at a
// moment.
func (c *Core) reportsAcknowledged(r reports) bool {
	for _, e := range c.gateways.entries {
		if e.value.GetWorkersRevision() < r.workers || e.value.GetInstancesRevision() < r.instances {
			return false
		}
	}
	return true
}

// lag records which gateways and schedulers have not applied a revision of the bucket models
// in time, by id, and which have by now.
func (c *Core) lag(late map[string]uint64) {
	for id, revision := range c.fleet.lagging {
		if _, again := late[id]; again {
			continue
		}
		if slices.Contains(c.behind(revision), id) {
			late[id] = revision
		} else {
			c.note(Info, "a service applies changes of models again, or is gone", field("service", id))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(late)) {
		if c.fleet.lagging[id] == 0 {
			c.note(Warn, "a service is alive and has not applied a change of the models: what it replaced is unloaded all the same",
				field("service", id), field("revision", late[id]), field("after", c.cfg.LagTimeout))
		}
	}
	if !maps.Equal(late, c.fleet.lagging) {
		c.fleet.lagging = late
		c.changeReport()
	}
}

// expireWorkers deletes the keys of workers that are gone for good.
func (c *Core) expireWorkers() {
	for worker := range c.fleet.lost {
		if _, lives := c.workers.entries[Key{Name: worker}]; lives {
			delete(c.fleet.lost, worker)
		}
	}
	for _, owners := range []map[string]map[string]bool{c.assignments.byOwner, c.instances.byOwner} {
		for _, worker := range slices.Sorted(maps.Keys(owners)) {
			c.noteLost(worker)
		}
	}
	for worker := range c.fleet.dead {
		if _, kept := c.fleet.lost[worker]; !kept {
			delete(c.fleet.dead, worker) // nothing is kept for it
		}
	}
	for _, worker := range slices.Sorted(maps.Keys(c.fleet.lost)) {
		if left := c.cfg.WorkerGrace - c.now.Sub(c.fleet.lost[worker]); left > 0 {
			c.wake(left)
		} else if len(c.inFlight) == 0 { // one after another
			c.deleteWorker(worker)
		}
	}
}

func (c *Core) noteLost(worker string) {
	_, lives := c.workers.entries[Key{Name: worker}]
	if _, known := c.fleet.lost[worker]; lives || known {
		return
	}
	c.fleet.lost[worker] = c.now
	level, text := Info, "worker is away: its assignments are kept for its return"
	if c.fleet.dead[worker] {
		level, text = Warn, "worker lost: its assignments are kept for its return"
	}
	c.note(level, text, field("worker_id", worker), field("for", c.cfg.WorkerGrace))
}

// deleteWorker deletes what a worker was assigned, first the fence: while that is there so is
// all else. Then it deletes what the worker has reported.
func (c *Core) deleteWorker(worker string) {
	if k := (Key{worker, fence}); c.assignments.get(k) != nil {
		c.write(Write{Bucket: Assignments, Key: k, Replaces: c.assignments.entries[k].revision}, nil)
	}
	c.deleteAll(Assignments, worker, c.assignments.byOwner[worker], func(k Key) uint64 { return c.assignments.entries[k].revision })
	c.deleteAll(Instances, worker, c.instances.byOwner[worker], func(k Key) uint64 { return c.instances.entries[k].revision })
	c.whenDone(func() {
		delete(c.fleet.lost, worker)
		delete(c.fleet.dead, worker)
		c.note(Info, "assignments of a lost worker deleted", field("worker_id", worker))
	})
}

// deleteAll deletes the keys of a worker in a bucket, but for its fence.
func (c *Core) deleteAll(bucket Bucket, worker string, names map[string]bool, revision func(Key) uint64) {
	var batch Batch
	for name := range names {
		if k := (Key{worker, name}); bucket != Assignments || name != fence {
			batch = append(batch, Write{Bucket: bucket, Key: k, Replaces: revision(k)})
		}
	}
	if len(batch) > 0 {
		slices.SortFunc(batch, byKey)
		c.write(batch, nil)
	}
}

// changeReport has others see what the leadership knows of the cluster.
func (c *Core) changeReport() {
	c.out.Report = &Report{UnderReplicated: c.placement.underReplicated, Lagging: c.fleet.lagging}
}
