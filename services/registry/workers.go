package registry

import (
	"maps"
	"time"

	"github.com/nereid-serving/nereid/libs/bus"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// moment is a time in the revisions of what the workers say. Those of the
// buckets would not do: a renewal of a lease raises one, of which no gateway is
// told.
type moment struct{ workers, instances uint64 }

// takeWorker tells a worker that comes, goes or changes in what assignments are
// made for from one that tells how far it is.
func (t *term) takeWorker(e bus.Event[*nereidv1.WorkerValue], open bool) (bool, error) {
	before, known := t.workers.entries[e.Key]
	started := t.workers.caughtUp
	news, err := take(t.workers, e, open, e.Value.GetSchema())
	if !news || e.Kind == bus.EventCaughtUp {
		return news, err
	}
	if started {
		t.changed.workers = max(t.changed.workers, e.Revision)
	}
	if e.Kind == bus.EventPut && known && sameOffer(before.Value, e.Value) {
		waits := t.waits() || len(t.assignments.marked) > 0 || len(t.account.owed) > 0
		t.collect(e.Key)
		return waits, err
	}
	if t.offers[e.Key] = e.Revision; e.Kind == bus.EventDelete {
		delete(t.offers, e.Key)
	}
	t.replace()
	return true, err
}

// sameOffer reports whether two values of a worker differ in nothing that
// placement depends on.
func sameOffer(a, b *nereidv1.WorkerValue) bool {
	return a.GetEpoch() == b.GetEpoch() && a.GetDevice().GetKind() == b.GetDevice().GetKind() &&
		a.GetDevice().GetNumber() == b.GetDevice().GetNumber() && maps.Equal(a.GetLabels(), b.GetLabels()) &&
		a.GetMemoryBudgetBytes() == b.GetMemoryBudgetBytes() && a.GetLeaving() == b.GetLeaving()
}

// takeInstances takes what a worker says of a model, which matters only while
// somebody waits for it.
func (t *term) takeInstances(e bus.Event[*nereidv1.InstancesValue], open bool) (bool, error) {
	started := t.instances.caughtUp
	news, err := take(t.instances.mirror, e, open, e.Value.GetSchema())
	if !news || e.Kind == bus.EventCaughtUp {
		return news, err
	}
	if started {
		t.changed.instances = max(t.changed.instances, e.Revision)
	}
	_, key := bus.CutKey(e.Key)
	if t.heardOf[e.Key] = time.Now(); e.Kind == bus.EventDelete {
		delete(t.heardOf, e.Key)
	}
	more := t.measure(key, e.Value)
	if t.moving[key] || more {
		t.unplaced[key] = true
	}
	return t.waits() || more, err
}

// takeAssignment takes what this leader, or another, has written.
func (t *term) takeAssignment(e bus.Event[*nereidv1.AssignmentValue], open bool) (bool, error) {
	news, err := take(t.assignments.mirror, e, open, e.Value.GetSchema())
	if _, key := bus.CutKey(e.Key); news && key != head {
		t.unplaced[key] = true
	}
	return news, err
}

// replace has all models placed again.
func (t *term) replace() {
	for key := range t.models.entries {
		t.unplaced[key] = true
	}
	for key := range t.assignments.names {
		if key != head {
			t.unplaced[key] = true
		}
	}
}

// live gives the workers that are there.
func (t *term) live() map[string]*nereidv1.WorkerValue {
	live := make(map[string]*nereidv1.WorkerValue, len(t.workers.entries))
	for id, entry := range t.workers.entries {
		if entry.Value != nil {
			live[id] = entry.Value
		}
	}
	return live
}

// said gives what a worker says of a model; nil if it says nothing that counts.
func (t *term) said(worker, key string) *nereidv1.InstancesValue {
	lease := t.workers.entries[worker].Value
	if said := t.instances.of(worker, key); lease != nil && said.GetEpoch() == lease.GetEpoch() {
		return said
	}
	return nil
}

// told reports whether all gateways and schedulers have applied a revision of
// the bucket models.
func (t *term) told(revision uint64) bool {
	for _, m := range []*mirror[*nereidv1.ServiceValue]{t.gateways, t.schedulers} {
		for _, entry := range m.entries {
			if entry.Value.GetAppliedRevision() < revision {
				return false
			}
		}
	}
	return true
}

// heard reports whether all gateways know what the workers had said at a
// moment.
func (t *term) heard(m moment) bool {
	for _, entry := range t.gateways.entries {
		if entry.Value.GetWorkersRevision() < m.workers || entry.Value.GetInstancesRevision() < m.instances {
			return false
		}
	}
	return true
}
