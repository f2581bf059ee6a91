package core

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/resources"
	"github.com/nereid-serving/nereid/libs/state"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core/place"
	"github.com/nereid-serving/nereid/services/registry/core/publish"
)

// fence is the name of a worker's fence among its assignments: the value that is written last,
// and deleted first, so that while it is there so is all else. It has the leader's epoch: the
// worker refuses what was assigned under an earlier one.
const fence = ""

// placement is which models are to be placed again, and what placing them has left open.
type placement struct {
	// due are the keys of models whose assignments may not follow the models and the workers.
	due map[string]bool
	// migrating are those that are to leave workers once they are ready on others, waiting
	// those that wait for memory, conflicting those that are refused for what other models ask
	// of a rate limiter.
	migrating, waiting, conflicting map[string]bool
	// open are the models that another worker would change, by the pool of that worker; any
	// is every pool.
	open map[string]string
	// rateLimits are those of the pools whose schedulers are known, by pool.
	rateLimits map[string]rateLimit
	// revoked are the assignments without versions, which take a model from its worker.
	revoked map[Key]bool
	// underReplicated is why versions are on fewer workers than they should be. It is replaced
	// as a whole.
	underReplicated map[infer.ModelRef]string
	// restored are models that were assigned before the store lost its state. Until deadline
	// they wait for their workers.
	restored map[string]bool
	deadline time.Time
}

const anyPool = ""

// rateLimit is a pool's rate limiter, as its scheduler reports it.
type rateLimit struct {
	on     bool
	counts resources.Counts
}

func newPlacement() placement {
	return placement{
		due: make(map[string]bool), migrating: make(map[string]bool), waiting: make(map[string]bool), conflicting: make(map[string]bool), open: make(map[string]string),
		rateLimits: make(map[string]rateLimit), revoked: make(map[Key]bool), restored: make(map[string]bool),
	}
}

// touch has a model be placed again.
func (p *placement) touch(key string) { p.due[key] = true }

func (p *placement) touchMigrating() { maps.Copy(p.due, p.migrating) }

func (p *placement) touchWaiting() { maps.Copy(p.due, p.waiting) }

func (p *placement) moves() bool { return len(p.migrating) > 0 }

// touchAll has all models be placed again.
func (c *Core) touchAll() {
	for k := range c.models.entries {
		c.placement.touch(k.Name)
	}
	for key := range c.assignments.byName {
		if key != fence {
			c.placement.touch(key)
		}
	}
}

// touchWorker has the models be placed again that a worker concerns which came, went or
// changed: those that it is assigned, those that something is wanting for, and, of one that
// may take more, those that another worker of its pool would change. before and after are its
// values, nil where it was not there or is there no more.
func (c *Core) touchWorker(worker string, before, after *nereidv1.WorkerValue) {
	for key := range c.assignments.byOwner[worker] {
		if key != fence {
			c.placement.touch(key)
		}
	}
	joins := after != nil && !after.GetLeaving() && after.GetDeviceProblem() == ""
	pools := []string{anyPool}
	for _, v := range []*nereidv1.WorkerValue{before, after} {
		if v != nil && joins {
			pools = append(pools, c.cfg.Pools.OfWorker(v.GetLabels()))
		}
	}
	for key, pool := range c.placement.open {
		if slices.Contains(pools, pool) {
			c.placement.touch(key)
		}
	}
}

// assignmentChanged follows what is assigned. What a worker is to give up is reserved until it
// has.
func (c *Core) assignmentChanged(k Key) {
	if k.Name == fence {
		return
	}
	v, present := c.assignments.entries[k]
	c.placement.touch(k.Name)
	delete(c.placement.revoked, k)
	switch {
	case !present:
		c.memory.release(k)
		c.placement.touchWaiting()
	case len(v.value.GetVersions()) > 0:
		c.reserve(k)
	default:
		c.placement.revoked[k] = true
	}
}

// rateLimitChanged takes the rate limiter of a pool's scheduler. It stays known when the
// scheduler is gone: the next one will have the same.
func (c *Core) rateLimitChanged(e Changed) bool {
	pool, isPool := strings.CutPrefix(e.Key.Name, control.PoolRole(""))
	if !isPool {
		return false
	}
	value := c.leaders.get(e.Key)
	before, known := c.placement.rateLimits[pool]
	counts, err := resources.Parse(value.GetRateLimit().GetResources())
	if err != nil {
		c.note(Error, "the rate limiter of a pool's scheduler cannot be read", field("pool", pool), field("error", err))
		return false
	}
	next := rateLimit{value.GetRateLimit() != nil, counts}
	if known && before.on == next.on && slices.Equal(before.counts, next.counts) {
		return false // its lease was renewed
	}
	c.placement.rateLimits[pool] = next
	c.touchAll()
	return true
}

// place brings the assignments of the live workers up to date, and the causes of versions that
// fit none of them, for the models of which anything has changed. While there is no worker the
// causes stay: they would only come and go with a worker that restarts.
func (c *Core) place() {
	c.forgetDrained()
	if !c.published || !c.anyWorker() {
		return
	}
	if c.raiseFences(); len(c.inFlight) > 0 {
		return
	}
	maps.Copy(c.placement.due, c.placement.conflicting)
	keys := c.keysToPlace()
	if len(keys) == 0 {
		c.addFences()
		return
	}
	stored := c.stored(keys)
	versions, causes := publish.Versions(stored, c.cfg.Pools)
	versions = c.locate(append(versions, c.drainingOf(keys)...))
	c.refuseConflicts(versions)
	placed := place.Assign(versions, c.placeWorkers(keys))
	maps.Copy(causes, placed.Unplaced)
	for _, w := range publish.MarkUnplaced(stored, causes) {
		c.write(Write{Bucket: Models, Key: Key{Name: w.Key}, Value: w.Value, Replaces: w.Replaces}, nil)
		c.noteMark(w.Key, causes)
	}
	c.assign(keys, placed)
	c.movePools(versions, placed)
	record := func() { c.recordPlacement(keys, versions, placed) }
	if len(c.inFlight) == 0 {
		record()
		c.addFences()
		return
	}
	c.whenDone(record)
}

// keysToPlace gives the models that may have to be placed. Those that need resources wait for
// the word of their pool's scheduler about them. After the store has lost what it held, those
// that were placed before wait for the workers to come back.
func (c *Core) keysToPlace() []string {
	keys := slices.DeleteFunc(slices.Sorted(maps.Keys(c.placement.due)), c.awaitsRateLimit)
	if c.now.Before(c.placement.deadline) {
		return slices.DeleteFunc(keys, func(key string) bool { return c.placement.restored[key] })
	}
	return keys
}

// awaitsRateLimit reports whether a model needs resources and the scheduler of its pool has
// not reported how much there is.
func (c *Core) awaitsRateLimit(key string) bool {
	return publish.HasResources(c.model(key), c.cfg.Pools, func(pool string) bool {
		_, known := c.placement.rateLimits[pool]
		return !known
	})
}

// refuseConflicts marks the versions that cannot be loaded beside those of other models, and
// has their models placed again until they can.
func (c *Core) refuseConflicts(versions []place.Version) {
	limited := func(pool string) bool { return c.placement.rateLimits[pool].on }
	clear(c.placement.conflicting)
	if !slices.ContainsFunc(versions, func(v place.Version) bool { return limited(v.Pool) }) {
		return
	}
	all := make(publish.Models, len(c.models.entries))
	for k, e := range c.models.entries {
		all[k.Name] = publish.Model{Value: e.value}
	}
	causes := publish.Conflicts(all, c.cfg.Pools, limited, c.readyAnywhere)
	for i := range versions {
		versions[i].Refused = causes[versions[i].Model]
	}
	for ref := range causes {
		c.placement.conflicting[ref.ID().Key()] = true
	}
}

// placeWorkers gives the workers to place on, those that may come back among them, with what
// all but the keys' models use of them.
func (c *Core) placeWorkers(keys []string) []place.Worker {
	own := make(map[string]usage)
	for _, key := range keys {
		for worker := range c.assignments.byName[key] {
			k := Key{worker, key}
			part := c.assignments.get(k)
			if len(part.GetVersions()) > 0 { // else it is being given up, and still takes its room
				own[worker] = usage{own[worker].bytes + min(c.requiredBytes(part), c.memory.bytes[k]), own[worker].models + 1}
			}
		}
	}
	list := make([]place.Worker, 0, len(c.workers.entries))
	for k, e := range c.workers.entries {
		if e.value == nil {
			continue
		}
		w := publish.Worker(k.Name, e.value, c.cfg.Pools)
		w.Resources = c.placement.rateLimits[w.Pool].counts
		w.Used, w.Load = c.memory.totals[k.Name].bytes-own[k.Name].bytes, c.memory.totals[k.Name].models-own[k.Name].models
		list = append(list, w)
	}
	for worker := range c.assignments.byOwner {
		if _, lives := c.workers.entries[Key{Name: worker}]; !lives {
			list = append(list, place.Worker{ID: worker, Lost: true})
		}
	}
	return list
}

// locate says of versions what they take, where they are, and where requests go to them.
func (c *Core) locate(versions []place.Version) []place.Version {
	for i := range versions {
		v := &versions[i]
		key := v.Model.ID().Key()
		v.Bytes = c.instanceBytes(v.Model)
		v.Pinned = !v.Replaced && v.Pool != publish.PoolOf(c.model(key))
		for worker := range c.assignments.byName[key] {
			assigned := c.part(worker, key).GetVersions()
			if slices.ContainsFunc(assigned, func(a *nereidv1.AssignedVersion) bool { return state.RefOf(a.GetModel()) == v.Model }) {
				if v.AssignedTo == nil {
					v.AssignedTo = make(map[string]bool)
				}
				v.AssignedTo[worker] = c.readyAt(worker, v.Model)
			}
		}
	}
	return versions
}

// assign writes the assignments of models that are not as they are placed. What workers give
// up is written before what others, or they, get in its place: it may need the memory, and a
// leader may die between two writes.
func (c *Core) assign(keys []string, placed place.Placement) {
	parts := publish.Parts(placed)
	var taking, adding Batch
	for _, key := range keys {
		for k := range c.workers.entries {
			part := parts[publish.Part{Worker: k.Name, Model: key}]
			switch w, needed := c.assignmentWrite(Key{k.Name, key}, part); {
			case needed && publish.Adds(c.part(k.Name, key), part):
				adding = append(adding, w)
			case needed:
				taking = append(taking, w)
			}
		}
	}
	for _, batch := range []Batch{taking, adding} {
		if len(batch) > 0 {
			slices.SortFunc(batch, byKey)
			c.write(batch, nil)
		}
	}
	if n := len(taking) + len(adding); n > 0 {
		c.inFlight[len(c.inFlight)-1].also(func() {
			c.note(Info, "models assigned", field("assignments", n), field("revision", c.assignments.revision))
		})
	}
}

func byKey(a, b Write) int {
	return cmp.Or(strings.Compare(a.Key.Owner, b.Key.Owner), strings.Compare(a.Key.Name, b.Key.Name))
}

// assignmentWrite gives the write after which a worker's assignment of a model names these
// versions, and whether one is needed. What was assigned is taken back by a value without
// versions: a deletion says nothing.
func (c *Core) assignmentWrite(k Key, versions []place.Assigned) (w Write, needed bool) {
	e, known := c.assignments.entries[k]
	if publish.Assigns(e.value, versions) && !c.fenced(k.Owner, e) || !known && len(versions) == 0 {
		return w, false
	}
	value := publish.Assign(k.Owner, versions, c.models.revision, c.cfg.Epoch)
	return Write{Bucket: Assignments, Key: k, Value: value, Replaces: e.revision}, true
}

// fenced reports whether the worker has refused an assignment, as one that a deposed leader
// wrote.
func (c *Core) fenced(worker string, e entry[*nereidv1.AssignmentValue]) bool {
	raised := c.assignments.entries[Key{worker, fence}]
	return e.value.GetLeaderEpoch() < raised.value.GetLeaderEpoch() && e.revision > raised.revision
}

// raiseFences makes the workers refuse what a deposed leader may still write: the fences that
// are there get this leadership's epoch before anything else is written.
func (c *Core) raiseFences() {
	c.writeFences(func(worker string) bool {
		old := c.part(worker, fence)
		return old != nil && old.GetLeaderEpoch() < c.cfg.Epoch
	})
}

// addFences writes the fences of workers that have none: all else is there.
func (c *Core) addFences() {
	c.writeFences(func(worker string) bool { return c.part(worker, fence) == nil })
}

func (c *Core) writeFences(needed func(worker string) bool) {
	var batch Batch
	for k := range c.workers.entries {
		if needed(k.Name) {
			at := Key{k.Name, fence}
			value := publish.Assign(k.Name, nil, c.models.revision, c.cfg.Epoch)
			batch = append(batch, Write{Bucket: Assignments, Key: at, Value: value, Replaces: c.assignments.entries[at].revision})
		}
	}
	if len(batch) == 0 {
		return
	}
	slices.SortFunc(batch, byKey)
	c.write(batch, func() {
		for _, w := range batch {
			c.note(Info, "worker assigned", field("worker_id", w.Key.Owner), field("models", len(c.assignments.byOwner[w.Key.Owner])-1))
		}
	})
}

// movePools sends the requests of models to other pools, where all that is placed of them is
// ready there.
func (c *Core) movePools(versions []place.Version, placed place.Placement) {
	ready := make(map[string]string) // pools by model key; none where one is not
	for _, v := range versions {
		key := v.Model.ID().Key()
		if !v.Pinned {
			continue
		}
		before, seen := ready[key]
		if ready[key] = v.Pool; !c.readyInPool(v, placed) || seen && before == "" {
			ready[key] = ""
		}
	}
	for _, key := range slices.Sorted(maps.Keys(ready)) {
		pool := ready[key]
		if pool == "" || slices.ContainsFunc(c.inFlight, func(p pending) bool { w, is := p.command.(Write); return is && w.Key.Name == key }) {
			continue // one write of a key at a time
		}
		c.write(c.replace(key, publish.WithPool(c.model(key), pool)), func() {
			c.note(Info, "model moved to another pool", field("model", infer.ParseModelID(key)), field("pool", pool))
		})
	}
}

// readyInPool reports whether a version is ready on all the workers of its pool on which it is
// placed, and is on one; one that is nowhere need not be waited for.
func (c *Core) readyInPool(v place.Version, placed place.Placement) bool {
	if len(v.AssignedTo) == 0 && placed.Unplaced[v.Model] != "" {
		return true
	}
	there := 0
	for worker, assigned := range placed.Workers {
		lease := c.workers.get(Key{Name: worker})
		in := slices.ContainsFunc(assigned, func(a place.Assigned) bool { return a.Model == v.Model })
		if !in || lease == nil || c.cfg.Pools.OfWorker(lease.GetLabels()) != v.Pool {
			continue
		}
		if !v.AssignedTo[worker] {
			return false
		}
		there++
	}
	return there > 0
}

// recordPlacement records what a placement of the keys' models has left open.
func (c *Core) recordPlacement(keys []string, versions []place.Version, placed place.Placement) {
	p := &c.placement
	for _, key := range keys {
		delete(p.due, key)
		delete(p.migrating, key)
		delete(p.waiting, key)
		delete(p.open, key)
	}
	for ref := range placed.Migrating {
		p.migrating[ref.ID().Key()] = true
	}
	for ref := range placed.WaitingForMemory {
		p.waiting[ref.ID().Key()] = true
	}
	for _, v := range versions {
		key := v.Model.ID().Key()
		if placed.Migrating[v.Model] || placed.Unplaced[v.Model] != "" || placed.UnderReplicated[v.Model] != "" {
			p.open[key] = anyPool
		} else if pool, known := p.open[key]; placed.Open[v.Model] && (!known || pool != anyPool) {
			p.open[key] = v.Pool
		}
	}
	next, changed := maps.Clone(p.underReplicated), false
	maps.DeleteFunc(next, func(ref infer.ModelRef, _ string) bool {
		_, found := slices.BinarySearch(keys, ref.ID().Key())
		gone := found && placed.UnderReplicated[ref] == ""
		changed = changed || gone
		return gone
	})
	for _, ref := range slices.SortedFunc(maps.Keys(placed.UnderReplicated), infer.ModelRef.Compare) {
		cause := placed.UnderReplicated[ref]
		if p.underReplicated[ref] == cause {
			continue
		}
		if changed = true; next == nil {
			next = make(map[infer.ModelRef]string)
		}
		next[ref] = cause
		c.note(Warn, "model version runs on fewer workers than it should", append(ofModel(ref), field("cause", cause))...)
	}
	if changed {
		p.underReplicated = next
		c.changeReport()
	}
}

// deleteRevoked deletes the assignments that took models back from workers which have given
// them up, and reported it: until then a deletion could be all that a worker receives of it.
func (c *Core) deleteRevoked() {
	var batch Batch
	for k := range c.placement.revoked {
		e := c.assignments.entries[k]
		if c.workers.get(Key{Name: k.Owner}).GetAssignmentRevision() >= e.revision {
			batch = append(batch, Write{Bucket: Assignments, Key: k, Replaces: e.revision})
		}
	}
	if len(batch) > 0 {
		slices.SortFunc(batch, byKey)
		c.write(batch, nil)
	}
}

func (c *Core) noteMark(key string, causes map[infer.ModelRef]string) {
	for _, ref := range slices.SortedFunc(maps.Keys(causes), infer.ModelRef.Compare) {
		if ref.ID().Key() == key {
			c.note(Warn, "model version fits no worker", append(ofModel(ref), field("cause", causes[ref]))...)
		}
	}
}
