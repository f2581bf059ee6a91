package core

import (
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/state"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core/publish"
)

// memory is what the workers' memory is reserved for, kept as assignments change so that a
// placement need not count all of them.
type memory struct {
	// bytes are what the parts of models take; totals are those of each worker.
	bytes  map[Key]int64
	totals map[string]usage
	// releasing are the parts, by worker, that have more reserved than what is assigned takes,
	// until the worker has given the rest up.
	releasing map[string]map[Key]bool
	// measured is what an instance was found to take, by its version's digest: of a loaded
	// version that is loaded elsewhere, or again.
	measured map[string]int64
}

type usage struct {
	bytes  int64
	models int
}

func newMemory() memory {
	return memory{bytes: make(map[Key]int64), totals: make(map[string]usage), releasing: make(map[string]map[Key]bool), measured: make(map[string]int64)}
}

// set records what a part of a model takes.
func (m *memory) set(k Key, bytes int64) {
	total := m.totals[k.Owner]
	before, known := m.bytes[k]
	if !known {
		total.models++
	}
	total.bytes += bytes - before
	m.bytes[k], m.totals[k.Owner] = bytes, total
}

// release records that a part of a model is gone.
func (m *memory) release(k Key) {
	before, known := m.bytes[k]
	if !known {
		return
	}
	total := m.totals[k.Owner]
	total.bytes, total.models = total.bytes-before, total.models-1
	if m.totals[k.Owner] = total; total.models == 0 {
		delete(m.totals, k.Owner)
	}
	delete(m.bytes, k)
	m.releases(k, false)
}

// releases records whether more is reserved for a part than it takes.
func (m *memory) releases(k Key, more bool) {
	switch {
	case more && m.releasing[k.Owner] == nil:
		m.releasing[k.Owner] = map[Key]bool{k: true}
	case more:
		m.releasing[k.Owner][k] = true
	default:
		if delete(m.releasing[k.Owner], k); len(m.releasing[k.Owner]) == 0 {
			delete(m.releasing, k.Owner)
		}
	}
}

// reserve records what a part of a model takes. Of one that has become less the worker may
// still have all, until it reports that it has done what was assigned.
func (c *Core) reserve(k Key) {
	e := c.assignments.entries[k]
	before, cost := c.memory.bytes[k], c.requiredBytes(e.value)
	if cost < before && c.workers.get(Key{Name: k.Owner}).GetAssignmentRevision() < e.revision {
		c.memory.releases(k, true)
		return
	}
	c.memory.releases(k, false)
	if c.memory.set(k, cost); cost < before {
		c.placement.touchWaiting()
	}
}

// releaseApplied releases the memory that a worker has given up.
func (c *Core) releaseApplied(worker string) {
	for k := range c.memory.releasing[worker] {
		c.reserve(k)
	}
}

// requiredBytes is what the instances of an assignment take.
func (c *Core) requiredBytes(v *nereidv1.AssignmentValue) (bytes int64) {
	for _, version := range v.GetVersions() {
		count := uint32(0)
		for _, g := range version.GetGroups() {
			count += g.GetCount()
		}
		bytes += c.instanceBytes(state.RefOf(version.GetModel())) * int64(count)
	}
	return bytes
}

// instanceBytes is what an instance of a loaded version takes: as measured, or else as its
// files have.
func (c *Core) instanceBytes(ref infer.ModelRef) int64 {
	if d, leaves := c.rollouts.draining[ref]; leaves {
		return d.version.Bytes
	}
	v := publish.Find(c.model(ref.ID().Key()), ref)
	if bytes, known := c.memory.measured[v.GetDigest()]; known {
		return bytes
	}
	return int64(v.GetBytes())
}

// recordMemory takes what a worker has measured of a model and reports whether that is more
// than was known. It is a bound: an instance may take more when it has run than when it was
// loaded, and none takes less for good.
func (c *Core) recordMemory(key string, v *nereidv1.InstancesValue) (more bool) {
	for _, version := range v.GetVersions() {
		if version.GetMemoryBytes() == 0 || len(version.GetInstances()) == 0 {
			continue
		}
		digest := publish.Find(c.model(key), state.RefOf(version.GetModel())).GetDigest()
		bytes := int64(version.GetMemoryBytes()) / int64(len(version.GetInstances()))
		if known, ok := c.memory.measured[digest]; digest != "" && (!ok || bytes > known) {
			c.memory.measured[digest] = bytes
			more = true
		}
	}
	if more {
		for worker := range c.assignments.byName[key] {
			if k := (Key{worker, key}); len(c.assignments.get(k).GetVersions()) > 0 {
				c.reserve(k)
			}
		}
	}
	return more
}
