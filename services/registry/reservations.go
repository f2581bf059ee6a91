package registry

import (
	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/state"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core/publish"
)

// reservations is what the workers' memory is used for, kept as assignments change
// so that a placement need not count all of them. It is owned by its leadership's
// loop.
type reservations struct {
	// bytes are what the parts of models take, by their keys; sums are those
	// of each worker.
	bytes  map[string]int64
	totals map[string]usage
	// releasing are the keys whose reservations are more than what is assigned takes, until
	// the workers have given the rest up.
	releasing map[string]bool
	// measured is what an instance was found to take, by its version's digest:
	// of a loaded version that is loaded elsewhere, or again.
	measured map[string]int64
}

type usage struct {
	bytes  int64
	models int
}

func newReservations() *reservations {
	return &reservations{bytes: make(map[string]int64), totals: make(map[string]usage), releasing: make(map[string]bool), measured: make(map[string]int64)}
}

// set notes what a part of a model takes.
func (r *reservations) set(key string, bytes int64) {
	worker, _ := bus.CutKey(key)
	s := r.totals[worker]
	before, known := r.bytes[key]
	if !known {
		s.models++
	}
	s.bytes += bytes - before
	r.bytes[key], r.totals[worker] = bytes, s
}

// release notes that a part of a model is gone.
func (r *reservations) release(key string) {
	before, known := r.bytes[key]
	if !known {
		return
	}
	worker, _ := bus.CutKey(key)
	s := r.totals[worker]
	s.bytes, s.models = s.bytes-before, s.models-1
	if r.totals[worker] = s; s.models == 0 {
		delete(r.totals, worker)
	}
	delete(r.bytes, key)
	delete(r.releasing, key)
}

// assignmentChanged follows what is assigned. What a worker is to give up is
// reserved until it has.
func (l *leadership) assignmentChanged(key string, v *nereidv1.AssignmentValue, present bool) {
	_, name := bus.CutKey(key)
	switch {
	case name == fence:
	case !present:
		l.reserved.release(key)
		l.unplaced[name] = true
		l.replaceWaiting()
	case len(v.GetVersions()) > 0:
		l.reserve(key)
	}
}

// reserve notes what a part of a model takes. Of one that has become less the
// worker may still have all, until it says that it has done what was assigned.
func (l *leadership) reserve(key string) {
	worker, _ := bus.CutKey(key)
	entry := l.assignments.entries[key]
	before, cost := l.reserved.bytes[key], l.requiredBytes(entry.Value)
	if cost < before && l.workers.entries[worker].Value.GetAssignmentRevision() < entry.Revision {
		l.reserved.releasing[key] = true
		return
	}
	delete(l.reserved.releasing, key)
	if l.reserved.set(key, cost); cost < before {
		l.replaceWaiting()
	}
}

// releaseApplied releases the memory that a worker has given up.
func (l *leadership) releaseApplied(worker string) {
	for key := range l.reserved.releasing {
		if owner, _ := bus.CutKey(key); owner == worker {
			l.reserve(key)
		}
	}
}

// replaceWaiting has the models that wait for memory placed again.
func (l *leadership) replaceWaiting() {
	for starved := range l.waitingForMemory {
		l.unplaced[starved] = true
	}
}

// requiredBytes is what the instances of an assignment take.
func (l *leadership) requiredBytes(v *nereidv1.AssignmentValue) (bytes int64) {
	for _, version := range v.GetVersions() {
		count := uint32(0)
		for _, g := range version.GetGroups() {
			count += g.GetCount()
		}
		bytes += l.instanceBytes(state.RefOf(version.GetModel())) * int64(count)
	}
	return bytes
}

// instanceBytes is what an instance of a loaded version takes: as measured, or else as its
// files have.
func (l *leadership) instanceBytes(ref infer.ModelRef) int64 {
	if d, leaves := l.draining[ref]; leaves {
		return d.version.Bytes
	}
	v := publish.Find(l.models.entries[ref.ID().Key()].Value, ref)
	if bytes, known := l.reserved.measured[v.GetDigest()]; known {
		return bytes
	}
	return int64(v.GetBytes())
}

// recordMemory takes what a worker has measured of a model and reports whether that
// is more than was known. It is a bound: an instance may take more when it has
// run than when it was loaded, and none takes less for good.
func (l *leadership) recordMemory(key string, v *nereidv1.InstancesValue) (more bool) {
	for _, version := range v.GetVersions() {
		if version.GetMemoryBytes() == 0 || len(version.GetInstances()) == 0 {
			continue
		}
		digest := publish.Find(l.models.entries[key].Value, state.RefOf(version.GetModel())).GetDigest()
		bytes := int64(version.GetMemoryBytes()) / int64(len(version.GetInstances()))
		if known, ok := l.reserved.measured[digest]; digest != "" && (!ok || bytes > known) {
			l.reserved.measured[digest] = bytes
			more = true
		}
	}
	if more {
		for worker := range l.assignments.byName[key] {
			owned := bus.OwnedKey(worker, key)
			if part := l.assignments.entries[owned].Value; len(part.GetVersions()) > 0 {
				l.reserve(owned)
			}
		}
	}
	return more
}
