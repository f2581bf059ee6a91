package registry

import (
	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/state"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/internal/publish"
)

// account is what the workers' memory is used for, kept as assignments change
// so that a placement need not count all of them. It is owned by its term's
// loop.
type account struct {
	// charges are what the parts of models take, by their keys; sums are those
	// of each worker.
	charges map[string]int64
	sums    map[string]sum
	// owed are the keys whose charges are more than what is assigned takes, until
	// the workers have given the rest up.
	owed map[string]bool
	// measured is what an instance was found to take, by its version's digest:
	// of a content that is loaded elsewhere, or again.
	measured map[string]int64
}

type sum struct {
	bytes int64
	parts int
}

func newAccount() *account {
	return &account{charges: make(map[string]int64), sums: make(map[string]sum), owed: make(map[string]bool), measured: make(map[string]int64)}
}

// charge notes what a part of a model takes.
func (a *account) charge(key string, bytes int64) {
	worker, _ := bus.CutKey(key)
	s := a.sums[worker]
	before, known := a.charges[key]
	if !known {
		s.parts++
	}
	s.bytes += bytes - before
	a.charges[key], a.sums[worker] = bytes, s
}

// free notes that a part of a model is gone.
func (a *account) free(key string) {
	before, known := a.charges[key]
	if !known {
		return
	}
	worker, _ := bus.CutKey(key)
	s := a.sums[worker]
	s.bytes, s.parts = s.bytes-before, s.parts-1
	if a.sums[worker] = s; s.parts == 0 {
		delete(a.sums, worker)
	}
	delete(a.charges, key)
	delete(a.owed, key)
}

// keepAccount follows what is assigned. What a worker was told to give up is
// charged until it has.
func (t *term) keepAccount(key string, v *nereidv1.AssignmentValue, present bool) {
	_, name := bus.CutKey(key)
	switch {
	case name == head:
	case !present:
		t.account.free(key)
		t.unplaced[name] = true
		t.feed()
	case len(v.GetVersions()) > 0:
		t.charge(key)
	}
}

// charge notes what a part of a model takes. Of one that has become less the
// worker may still have all, until it says that it has done what was assigned.
func (t *term) charge(key string) {
	worker, _ := bus.CutKey(key)
	entry := t.assignments.entries[key]
	before, cost := t.account.charges[key], t.cost(entry.Value)
	if cost < before && t.workers.entries[worker].Value.GetAssignmentRevision() < entry.Revision {
		t.account.owed[key] = true
		return
	}
	delete(t.account.owed, key)
	if t.account.charge(key, cost); cost < before {
		t.feed()
	}
}

// collect frees what a worker owed and has given up.
func (t *term) collect(worker string) {
	for key := range t.account.owed {
		if owner, _ := bus.CutKey(key); owner == worker {
			t.charge(key)
		}
	}
}

// feed has the models that wait for memory placed again.
func (t *term) feed() {
	for starved := range t.starved {
		t.unplaced[starved] = true
	}
}

// cost is what the instances of an assignment take.
func (t *term) cost(v *nereidv1.AssignmentValue) (bytes int64) {
	for _, version := range v.GetVersions() {
		count := uint32(0)
		for _, g := range version.GetGroups() {
			count += g.GetCount()
		}
		bytes += t.size(state.RefOf(version.GetModel())) * int64(count)
	}
	return bytes
}

// size is what an instance of a content takes: as measured, or else as its
// files have.
func (t *term) size(ref infer.ModelRef) int64 {
	if d, leaves := t.draining[ref]; leaves {
		return d.version.Bytes
	}
	v := publish.Find(t.models.entries[ref.ID().Key()].Value, ref)
	if bytes, known := t.account.measured[v.GetDigest()]; known {
		return bytes
	}
	return int64(v.GetBytes())
}

// measure takes what a worker has measured of a model and reports whether that
// is more than was known. It is a bound: an instance may take more when it has
// run than when it was loaded, and none takes less for good.
func (t *term) measure(key string, v *nereidv1.InstancesValue) (more bool) {
	for _, version := range v.GetVersions() {
		if version.GetMemoryBytes() == 0 || len(version.GetInstances()) == 0 {
			continue
		}
		digest := publish.Find(t.models.entries[key].Value, state.RefOf(version.GetModel())).GetDigest()
		bytes := int64(version.GetMemoryBytes()) / int64(len(version.GetInstances()))
		if known, ok := t.account.measured[digest]; digest != "" && (!ok || bytes > known) {
			t.account.measured[digest] = bytes
			more = true
		}
	}
	if more {
		for worker := range t.assignments.names[key] {
			owned := bus.OwnedKey(worker, key)
			if part := t.assignments.entries[owned].Value; len(part.GetVersions()) > 0 {
				t.charge(owned)
			}
		}
	}
	return more
}
