package registry

import (
	"maps"
	"time"

	"github.com/nereid-serving/nereid/libs/bus"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// reportRevisions is a time in the revisions of what the workers say. Those of the
// buckets would not do: a renewal of a lease raises one, which no gateway
// receives.
type reportRevisions struct{ workers, instances uint64 }

// workerChanged distinguishes a worker that comes, goes or changes in what assignments
// are made for from one that reports its progress.
func (l *leadership) workerChanged(e bus.Event[*nereidv1.WorkerValue], open bool) (bool, error) {
	before, known := l.workers.entries[e.Key]
	started := l.workers.caughtUp
	news, err := receive(l.workers, e, open, e.Value.GetSchema())
	if e.Kind == bus.EventCaughtUp {
		l.completer.follow(l.live())
	}
	if !news || e.Kind == bus.EventCaughtUp {
		return news, err
	}
	if delete(l.deadWorkers, e.Key); e.Kind == bus.EventDelete && e.Expired {
		l.deadWorkers[e.Key] = true
	}
	if started {
		l.changed.workers = max(l.changed.workers, e.Revision)
	}
	if e.Kind == bus.EventPut && known && sameCapacity(before.Value, e.Value) {
		waits := l.waits() || len(l.assignments.marked) > 0 || len(l.reserved.releasing) > 0
		l.releaseApplied(e.Key)
		return waits, err
	}
	if l.capacityRevisions[e.Key] = e.Revision; e.Kind == bus.EventDelete {
		delete(l.capacityRevisions, e.Key)
	}
	l.placeAll()
	if started && l.completer.follow(l.live()) && len(l.awaiting) > 0 {
		l.scans.in(0, time.Now())
	}
	return true, err
}

// sameCapacity reports whether two values of a worker differ in nothing that
// placement depends on.
func sameCapacity(a, b *nereidv1.WorkerValue) bool {
	return a.GetEpoch() == b.GetEpoch() && a.GetDevice().GetKind() == b.GetDevice().GetKind() &&
		a.GetDevice().GetNumber() == b.GetDevice().GetNumber() && maps.Equal(a.GetLabels(), b.GetLabels()) &&
		a.GetMemoryBudgetBytes() == b.GetMemoryBudgetBytes() && a.GetLeaving() == b.GetLeaving() &&
		(a.GetDeviceProblem() == "") == (b.GetDeviceProblem() == "") && maps.Equal(a.GetLacking(), b.GetLacking())
}

// instancesChanged takes what a worker says of a model, which matters only while
// an operation waits for it.
func (l *leadership) instancesChanged(e bus.Event[*nereidv1.InstancesValue], open bool) (bool, error) {
	started := l.instances.caughtUp
	news, err := receive(l.instances.watchCache, e, open, e.Value.GetSchema())
	if !news || e.Kind == bus.EventCaughtUp {
		return news, err
	}
	if started {
		l.changed.instances = max(l.changed.instances, e.Revision)
	}
	_, key := bus.CutKey(e.Key)
	if l.reportedAt[e.Key] = time.Now(); e.Kind == bus.EventDelete {
		delete(l.reportedAt, e.Key)
	}
	more := l.recordMemory(key, e.Value)
	if l.migrating[key] || more {
		l.unplaced[key] = true
	}
	return l.waits() || more, err
}

// receiveAssignment takes what this leader, or another, has written.
func (l *leadership) receiveAssignment(e bus.Event[*nereidv1.AssignmentValue], open bool) (bool, error) {
	news, err := receive(l.assignments.watchCache, e, open, e.Value.GetSchema())
	if _, key := bus.CutKey(e.Key); news && key != fence {
		l.unplaced[key] = true
	}
	return news, err
}

// placeAll has all models placed again.
func (l *leadership) placeAll() {
	for key := range l.models.entries {
		l.unplaced[key] = true
	}
	for key := range l.assignments.byName {
		if key != fence {
			l.unplaced[key] = true
		}
	}
}

// live gives the workers that are there.
func (l *leadership) live() map[string]*nereidv1.WorkerValue {
	live := make(map[string]*nereidv1.WorkerValue, len(l.workers.entries))
	for id, entry := range l.workers.entries {
		if entry.Value != nil {
			live[id] = entry.Value
		}
	}
	return live
}

// reportOf gives what a worker says of a model; nil if it says nothing that counts.
func (l *leadership) reportOf(worker, key string) *nereidv1.InstancesValue {
	lease := l.workers.entries[worker].Value
	if said := l.instances.of(worker, key); lease != nil && said.GetEpoch() == lease.GetEpoch() {
		return said
	}
	return nil
}

// modelsAcknowledged reports whether all gateways and schedulers have applied a revision of
// the bucket models.
func (l *leadership) modelsAcknowledged(revision uint64) bool {
	for _, m := range []*watchCache[*nereidv1.ServiceValue]{l.gateways, l.schedulers} {
		for _, entry := range m.entries {
			if entry.Value.GetAppliedRevision() < revision {
				return false
			}
		}
	}
	return true
}

// reportsAcknowledged reports whether all gateways know what the workers had said at a
// moment.
func (l *leadership) reportsAcknowledged(m reportRevisions) bool {
	for _, entry := range l.gateways.entries {
		if entry.Value.GetWorkersRevision() < m.workers || entry.Value.GetInstancesRevision() < m.instances {
			return false
		}
	}
	return true
}
