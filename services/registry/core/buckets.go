package core

import (
	"google.golang.org/protobuf/proto"

	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core/publish"
)

// entry is a key's value and revision. The value is nil where it cannot be read.
type entry[T proto.Message] struct {
	value    T
	revision uint64
}

// table is a bucket as its one writer knows it: the events of the watch, and the writes that
// the watch has not shown yet.
type table[T proto.Message] struct {
	entries map[Key]entry[T]
	// own are the writes that have not come back as events, by key.
	own map[Key]ownWrite
	// revision is the highest known of the bucket.
	revision uint64
	caughtUp bool
	// byOwner and byName hold the keys' parts, of a bucket whose keys have owners.
	byOwner, byName map[string]map[string]bool
}

// ownWrite is the revision that a write made or, of a deletion, the one that it ended.
type ownWrite struct {
	revision uint64
	deletion bool
}

func newTable[T proto.Message]() table[T] {
	return table[T]{
		entries: make(map[Key]entry[T]), own: make(map[Key]ownWrite),
		byOwner: make(map[string]map[string]bool), byName: make(map[string]map[string]bool),
	}
}

// get gives a key's value, nil if there is none.
func (t *table[T]) get(k Key) T { return t.entries[k].value }

// apply takes a change that the watch shows, and reports whether it is news.
func (t *table[T]) apply(e Changed) bool {
	t.revision = max(t.revision, e.Revision)
	if own, written := t.own[e.Key]; written {
		if e.Revision > own.revision || e.Revision == own.revision && !own.deletion {
			delete(t.own, e.Key)
		}
		if e.Revision <= own.revision {
			return false
		}
	}
	if e.Deleted {
		_, known := t.entries[e.Key]
		t.set(e.Key, entry[T]{}, false)
		return known
	}
	value, _ := e.Value.(T)
	t.set(e.Key, entry[T]{value, e.Revision}, true)
	return true
}

// written records that a value was put or, without one, deleted. revision is the new one.
func (t *table[T]) written(w Write, revision uint64) {
	t.revision = max(t.revision, revision)
	if w.Value == nil {
		t.own[w.Key] = ownWrite{w.Replaces, true}
		t.set(w.Key, entry[T]{}, false)
		return
	}
	t.own[w.Key] = ownWrite{revision, false}
	t.set(w.Key, entry[T]{w.Value.(T), revision}, true)
}

func (t *table[T]) set(k Key, e entry[T], present bool) {
	if present {
		t.entries[k] = e
	} else {
		delete(t.entries, k)
	}
	if k.Owner != "" {
		index(t.byOwner, k.Owner, k.Name, present)
		index(t.byName, k.Name, k.Owner, present)
	}
}

func index(in map[string]map[string]bool, a, b string, present bool) {
	switch {
	case present && in[a] == nil:
		in[a] = map[string]bool{b: true}
	case present:
		in[a][b] = true
	default:
		if delete(in[a], b); len(in[a]) == 0 {
			delete(in, a)
		}
	}
}

// buckets are what the store holds, as far as it is known.
type buckets struct {
	models      table[*nereidv1.ModelValue]
	workers     table[*nereidv1.WorkerValue]
	instances   table[*nereidv1.InstancesValue]
	assignments table[*nereidv1.AssignmentValue]
	gateways    table[*nereidv1.ServiceValue]
	schedulers  table[*nereidv1.ServiceValue]
	leaders     table[*nereidv1.LeaderValue]
	pools       table[*nereidv1.PoolValue]
}

func newBuckets() buckets {
	return buckets{
		models: newTable[*nereidv1.ModelValue](), workers: newTable[*nereidv1.WorkerValue](), instances: newTable[*nereidv1.InstancesValue](),
		assignments: newTable[*nereidv1.AssignmentValue](), gateways: newTable[*nereidv1.ServiceValue](), schedulers: newTable[*nereidv1.ServiceValue](),
		leaders: newTable[*nereidv1.LeaderValue](), pools: newTable[*nereidv1.PoolValue](),
	}
}

// caughtUp records that all that a bucket held is known.
func (b *buckets) caughtUp(e CaughtUp) {
	mark := func(revision *uint64, caughtUp *bool) { *revision, *caughtUp = max(*revision, e.Revision), true }
	switch e.Bucket {
	case Models:
		mark(&b.models.revision, &b.models.caughtUp)
	case Workers:
		mark(&b.workers.revision, &b.workers.caughtUp)
	case Instances:
		mark(&b.instances.revision, &b.instances.caughtUp)
	case Assignments:
		mark(&b.assignments.revision, &b.assignments.caughtUp)
	case Gateways:
		mark(&b.gateways.revision, &b.gateways.caughtUp)
	case Schedulers:
		mark(&b.schedulers.revision, &b.schedulers.caughtUp)
	case Leaders:
		mark(&b.leaders.revision, &b.leaders.caughtUp)
	case Pools:
		mark(&b.pools.revision, &b.pools.caughtUp)
	}
}

// whole reports whether all that the buckets held is known.
func (b *buckets) whole() bool {
	return b.models.caughtUp && b.pools.caughtUp && b.workers.caughtUp && b.instances.caughtUp && b.assignments.caughtUp &&
		b.gateways.caughtUp && b.schedulers.caughtUp && b.leaders.caughtUp
}

// anyWorker reports whether a worker is alive.
func (b *buckets) anyWorker() bool {
	for _, e := range b.workers.entries {
		if e.value != nil {
			return true
		}
	}
	return false
}

// model gives the value of a model's key, nil if there is none.
func (b *buckets) model(key string) *nereidv1.ModelValue { return b.models.get(Key{Name: key}) }

// stored gives the models of keys that are there.
func (b *buckets) stored(keys []string) publish.Models {
	stored := make(publish.Models, len(keys))
	for _, key := range keys {
		if e, ok := b.models.entries[Key{Name: key}]; ok {
			stored[key] = publish.Model{Value: e.value, Revision: e.revision}
		}
	}
	return stored
}

// part gives what a worker is assigned of a model.
func (b *buckets) part(worker, model string) *nereidv1.AssignmentValue {
	return b.assignments.get(Key{worker, model})
}

// replace is the write that puts a model's value in the place of the present one.
func (b *buckets) replace(key string, value *nereidv1.ModelValue) Write {
	return Write{Bucket: Models, Key: Key{Name: key}, Value: value, Replaces: b.models.entries[Key{Name: key}].revision}
}
