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
	"github.com/nereid-serving/nereid/services/registry/internal/place"
	"github.com/nereid-serving/nereid/services/registry/internal/publish"
)

// sites gives the workers to place on, those that may come back among them, with
// what all but the keys' models use of them.
func (t *term) sites(keys []string) []place.Worker {
	own := make(map[string]sum)
	for _, key := range keys {
		for worker := range t.assignments.names[key] {
			owned := bus.OwnedKey(worker, key)
			part := t.assignments.entries[owned].Value
			if len(part.GetVersions()) > 0 { // else it is being given up, and still takes its room
				own[worker] = sum{own[worker].bytes + min(t.cost(part), t.account.charges[owned]), own[worker].parts + 1}
			}
		}
	}
	var list []place.Worker
	for id, v := range t.live() {
		w := publish.Worker(id, v, t.cfg.Pools)
		w.Used, w.Load = t.account.sums[id].bytes-own[id].bytes, t.account.sums[id].parts-own[id].parts
		list = append(list, w)
	}
	for id := range t.assignments.owners {
		if _, lives := t.workers.entries[id]; !lives {
			list = append(list, place.Worker{ID: id, Gone: true})
		}
	}
	return list
}

// situate says of versions what they take, where they are, and where requests
// go to them.
func (t *term) situate(versions []place.Version) []place.Version {
	for i := range versions {
		v := &versions[i]
		key := v.Model.ID().Key()
		v.Bytes = t.size(v.Model)
		v.Held = !v.Leaving && v.Pool != publish.ServedIn(t.models.entries[key].Value)
		for worker := range t.assignments.names[key] {
			assigned := t.assignments.of(worker, key).GetVersions()
			if slices.ContainsFunc(assigned, func(a *nereidv1.AssignedVersion) bool { return state.RefOf(a.GetModel()) == v.Model }) {
				if v.At == nil {
					v.At = make(map[string]bool)
				}
				v.At[worker] = t.readyAt(worker, v.Model)
			}
		}
	}
	return versions
}

// readyAt reports whether a content is ready on a worker and all gateways know.
// One that does not say so for long is not waited for.
func (t *term) readyAt(worker string, ref infer.ModelRef) bool {
	key := ref.ID().Key()
	ready := slices.ContainsFunc(t.said(worker, key).GetVersions(), func(v *nereidv1.WorkerVersion) bool {
		return v.GetState() == nereidv1.State_STATE_READY && state.RefOf(v.GetModel()) == ref
	})
	if !ready {
		return false
	}
	said := t.instances.entries[bus.OwnedKey(worker, key)].Revision
	return t.heard(moment{workers: t.offers[worker], instances: said}) || time.Since(t.heardOf[bus.OwnedKey(worker, key)]) >= patience
}

// movePools sends the requests of models to other pools, where all that is
// placed of them is ready there.
func (t *term) movePools(ctx context.Context, versions []place.Version, placement place.Placement) error {
	ready := make(map[string]string) // pools by model key; none where one is not
	for _, v := range versions {
		key := v.Model.ID().Key()
		if !v.Held {
			continue
		}
		before, seen := ready[key]
		if ready[key] = v.Pool; !t.settledIn(v, placement) || seen && before == "" {
			ready[key] = ""
		}
	}
	for _, key := range slices.Sorted(maps.Keys(ready)) {
		if ready[key] == "" {
			continue
		}
		if err := t.put(ctx, key, publish.Moved(t.models.entries[key].Value, ready[key])); err != nil {
			return err
		}
		t.log.Info("model moved to another pool", zap.Stringer("model", infer.ParseModelID(key)), zap.String("pool", ready[key]))
	}
	return nil
}

// settledIn reports whether a version is ready on all the workers of its pool on
// which it is placed, and is on one; one that is nowhere need not be waited for.
func (t *term) settledIn(v place.Version, placement place.Placement) bool {
	if len(v.At) == 0 && placement.Unplaced[v.Model] != "" {
		return true
	}
	there := 0
	for worker, assigned := range placement.Workers {
		lease := t.workers.entries[worker].Value
		in := slices.ContainsFunc(assigned, func(a place.Assigned) bool { return a.Model == v.Model })
		if !in || lease == nil || publish.Pools(t.cfg.Pools).OfWorker(lease.GetLabels()) != v.Pool {
			continue
		}
		if !v.At[worker] {
			return false
		}
		there++
	}
	return there > 0
}

// note keeps what a placement of the keys' models has left open.
func (t *term) note(keys []string, placement place.Placement) {
	for _, key := range keys {
		delete(t.unplaced, key)
		delete(t.moving, key)
		delete(t.starved, key)
	}
	for ref := range placement.Moving {
		t.moving[ref.ID().Key()] = true
	}
	for ref := range placement.Starved {
		t.starved[ref.ID().Key()] = true
	}
	before, short := *t.short.Load(), make(map[infer.ModelRef]string)
	for ref, cause := range before {
		if _, found := slices.BinarySearch(keys, ref.ID().Key()); !found {
			short[ref] = cause
		}
	}
	for ref, cause := range placement.Short {
		if short[ref] = cause; before[ref] != cause {
			t.log.Warn("model version runs on fewer workers than it should", append(obs.Model(ref), zap.String("cause", cause))...)
		}
	}
	t.short.Store(&short)
}
