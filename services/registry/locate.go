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
	"github.com/nereid-serving/nereid/libs/state"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core/place"
	"github.com/nereid-serving/nereid/services/registry/core/publish"
)

// placeWorkers gives the workers to place on, those that may come back among them, with
// what all but the keys' models use of them.
func (l *leadership) placeWorkers(keys []string) []place.Worker {
	own := make(map[string]usage)
	for _, key := range keys {
		for worker := range l.assignments.byName[key] {
			owned := bus.OwnedKey(worker, key)
			part := l.assignments.entries[owned].Value
			if len(part.GetVersions()) > 0 { // else it is being given up, and still takes its room
				own[worker] = usage{own[worker].bytes + min(l.requiredBytes(part), l.reserved.bytes[owned]), own[worker].models + 1}
			}
		}
	}
	var list []place.Worker
	for id, v := range l.live() {
		w := publish.Worker(id, v, l.configured)
		w.Resources = l.rateLimits[w.Pool].counts
		w.Used, w.Load = l.reserved.totals[id].bytes-own[id].bytes, l.reserved.totals[id].models-own[id].models
		list = append(list, w)
	}
	for id := range l.assignments.byOwner {
		if _, lives := l.workers.entries[id]; !lives {
			list = append(list, place.Worker{ID: id, Lost: true})
		}
	}
	return list
}

// locate says of versions what they take, where they are, and where requests
// go to them.
func (l *leadership) locate(versions []place.Version) []place.Version {
	for i := range versions {
		v := &versions[i]
		key := v.Model.ID().Key()
		v.Bytes = l.instanceBytes(v.Model)
		v.Pinned = !v.Replaced && v.Pool != publish.PoolOf(l.models.entries[key].Value)
		for worker := range l.assignments.byName[key] {
			assigned := l.assignments.of(worker, key).GetVersions()
			if slices.ContainsFunc(assigned, func(a *nereidv1.AssignedVersion) bool { return state.RefOf(a.GetModel()) == v.Model }) {
				if v.AssignedTo == nil {
					v.AssignedTo = make(map[string]bool)
				}
				v.AssignedTo[worker] = l.readyAt(worker, v.Model)
			}
		}
	}
	return versions
}

// readyAt reports whether a loaded version is ready on a worker and all gateways know.
// One that does not say so for long is not waited for.
func (l *leadership) readyAt(worker string, ref infer.ModelRef) bool {
	key := ref.ID().Key()
	ready := slices.ContainsFunc(l.reportOf(worker, key).GetVersions(), func(v *nereidv1.WorkerVersion) bool {
		return v.GetState() == nereidv1.State_STATE_READY && state.RefOf(v.GetModel()) == ref
	})
	if !ready {
		return false
	}
	said := l.instances.entries[bus.OwnedKey(worker, key)].Revision
	return l.reportsAcknowledged(reportRevisions{workers: l.capacityRevisions[worker], instances: said}) || time.Since(l.reportedAt[bus.OwnedKey(worker, key)]) >= gatewayAckTimeout
}

// movePools sends the requests of models to other pools, where all that is
// placed of them is ready there.
func (l *leadership) movePools(ctx context.Context, versions []place.Version, placement place.Placement) error {
	ready := make(map[string]string) // pools by model key; none where one is not
	for _, v := range versions {
		key := v.Model.ID().Key()
		if !v.Pinned {
			continue
		}
		before, seen := ready[key]
		if ready[key] = v.Pool; !l.readyInPool(v, placement) || seen && before == "" {
			ready[key] = ""
		}
	}
	for _, key := range slices.Sorted(maps.Keys(ready)) {
		if ready[key] == "" {
			continue
		}
		if err := l.writeValue(ctx, key, publish.WithPool(l.models.entries[key].Value, ready[key])); err != nil {
			return err
		}
		l.log.Info("model moved to another pool", zap.Stringer("model", infer.ParseModelID(key)), zap.String("pool", ready[key]))
	}
	return nil
}

// readyInPool reports whether a version is ready on all the workers of its pool on
// which it is placed, and is on one; one that is nowhere need not be waited for.
func (l *leadership) readyInPool(v place.Version, placement place.Placement) bool {
	if len(v.AssignedTo) == 0 && placement.Unplaced[v.Model] != "" {
		return true
	}
	there := 0
	for worker, assigned := range placement.Workers {
		lease := l.workers.entries[worker].Value
		in := slices.ContainsFunc(assigned, func(a place.Assigned) bool { return a.Model == v.Model })
		if !in || lease == nil || l.configured.OfWorker(lease.GetLabels()) != v.Pool {
			continue
		}
		if !v.AssignedTo[worker] {
			return false
		}
		there++
	}
	return there > 0
}

// recordPlacement keeps what a placement of the keys' models has left open.
func (l *leadership) recordPlacement(keys []string, placement place.Placement) {
	for _, key := range keys {
		delete(l.unplaced, key)
		delete(l.migrating, key)
		delete(l.waitingForMemory, key)
	}
	for ref := range placement.Migrating {
		l.migrating[ref.ID().Key()] = true
	}
	for ref := range placement.WaitingForMemory {
		l.waitingForMemory[ref.ID().Key()] = true
	}
	before, short := *l.underReplicated.Load(), make(map[infer.ModelRef]string)
	for ref, cause := range before {
		if _, found := slices.BinarySearch(keys, ref.ID().Key()); !found {
			short[ref] = cause
		}
	}
	for ref, cause := range placement.UnderReplicated {
		if short[ref] = cause; before[ref] != cause {
			l.log.Warn("model version runs on fewer workers than it should", append(obs.Model(ref), zap.String("cause", cause))...)
		}
	}
	l.underReplicated.Store(&short)
}
