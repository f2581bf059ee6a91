package reconcile

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/sequence"
	"github.com/nereid-serving/nereid/services/worker/internal/source"
)

// loadedVersion is what the worker has of one generation. It is owned by the
// loop, but for what was loaded, which is not changed once it is set.
type loadedVersion struct {
	held
	// cause is why it is unavailable, or why its instances are not those
	// that were asked for last.
	cause error
	loaded
	slots  []slot
	away   map[infer.InstanceID]error // instances that are away, and why
	cancel context.CancelFunc         // of the load, or of the resize
	// progress is how its fetch goes on while it loads.
	progress source.Progress
	// abandoned says that nobody wanted the version while it was loaded or resized.
	abandoned bool
}

// loaded is a model version in memory, and the files that it is made of.
type loaded struct {
	version backend.Version
	files   source.Files
	model   backend.Model
	// sequences is what its instances share of sequences; nil if it batches none.
	sequences *sequence.Model
	bytes     int64 // of the files
	// memory is what the model and its instances have taken, in bytes.
	memory uint64
}

// slot is an instance, wanted or open, of the number within its group.
type slot struct {
	id     infer.InstanceID
	name   string
	group  Group // its Count is 0: groups of different sizes share instances
	number int
}

// unopened is an instance that is not open yet.
type unopened struct {
	slot
	instance backend.Instance
	warmed   []infer.Cost // what it took to warm it up
}

func (r *Reconciler) anyReady() bool {
	for _, versions := range r.have {
		for _, c := range versions {
			if c.state == infer.Ready {
				return true
			}
		}
	}
	return false
}

func (r *Reconciler) held(model infer.ModelID) []held {
	list := make([]held, 0, len(r.have[model]))
	for _, c := range r.have[model] {
		list = append(list, c.held)
	}
	slices.SortFunc(list, func(a, b held) int { return a.ref.Compare(b.ref) })
	return list
}

// load starts to load a version.
func (r *Reconciler) load(w want) {
	ctx, cancel := context.WithCancel(r.patience)
	c := &loadedVersion{
		held:   held{ref: w.ref, state: infer.Loading, groups: w.groups},
		loaded: loaded{version: backend.Version{Ref: w.ref, Config: w.version.Config}}, away: make(map[infer.InstanceID]error), cancel: cancel,
	}
	r.keep(c)
	bounds := r.limits(w.version.Config)
	r.task(w.ref.ID(), func() func() {
		defer cancel()
		if err := bounds.acquire(ctx); err != nil {
			return func() { r.failed(c, 0, err) }
		}
		defer bounds.release()
		l, instances, took, err := r.attempts(ctx, w, r.follow(ctx, c))
		if err == nil && ctx.Err() != nil {
			err = ctx.Err()
			r.discard(ctx, l, instances)
		}
		if err != nil {
			return func() { r.failed(c, took, err) }
		}
		return func() { r.opened(c, l, instances, took) }
	})
}

// follow returns what takes the progress of a version's fetch. It never waits for
// a loop that drains.
func (r *Reconciler) follow(ctx context.Context, c *loadedVersion) func(source.Progress) {
	return func(p source.Progress) {
		change := func(*Desired) {
			c.progress = p
			r.touched[c.ref.ID()] = true
		}
		select {
		case r.changes <- change:
		case <-ctx.Done():
		case <-r.stop:
		}
	}
}

// missing lists the instances that the groups ask for and have does not hold.
func missing(groups []Group, have []slot) []slot {
	var list []slot
	for _, g := range groups {
		count := g.Count
		g.Count = 0
		for n := range count {
			same := func(l slot) bool { return l.group == g && l.number == n }
			if !slices.ContainsFunc(have, same) {
				list = append(list, slot{name: fmt.Sprintf("%s_%d", g.Name, n), group: g, number: n})
			}
		}
	}
	return list
}

func (r *Reconciler) check(ref infer.ModelRef, err error) {
	if err != nil {
		r.deps.Failed(ref, err)
	}
}

// abandon gives up a load or a resize, as far as the backend can.
func (c *loadedVersion) abandon() {
	c.abandoned = true
	c.cancel()
}

// opened takes what was loaded, and opens its instances.
func (r *Reconciler) opened(c *loadedVersion, l loaded, instances []unopened, took time.Duration) {
	c.loaded = l
	r.start(c, instances)
	c.state = infer.Ready
	r.settle(c)
	r.deps.Loaded(c.version, took, nil)
}

// failed takes the end of a load that came to nothing. One that was given up
// says nothing about the version, which may be wanted again by now.
func (r *Reconciler) failed(c *loadedVersion, took time.Duration, err error) {
	if c.abandoned {
		r.drop(c.ref)
		return
	}
	c.state, c.cause = infer.Unavailable, err
	r.deps.Loaded(c.version, took, err)
}

// start opens instances, which offers them to the scheduler.
func (r *Reconciler) start(c *loadedVersion, instances []unopened) {
	for _, m := range instances {
		m.id = r.deps.Instances.Open(InstanceSpec{
			Model: c.ref, Name: m.name, Device: m.group.DeviceName(), Passive: m.group.Passive, Instance: m.instance, Warmed: m.warmed,
			Iterative: c.version.Config.Sequences != nil && c.version.Config.Sequences.Iterative,
			Unready:   func(id infer.InstanceID, cause error) { r.absences.tell(absence{c.ref, id, cause}) },
		})
		c.slots = append(c.slots, m.slot)
	}
}

// settle marks the version as settled after a while.
func (r *Reconciler) settle(c *loadedVersion) {
	r.task(c.ref.ID(), func() func() {
		timer := time.NewTimer(r.config.Linger)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.stop:
		}
		return func() { c.settled = true }
	})
}

// unload starts to retire a version's instances and to close it.
func (r *Reconciler) unload(c *loadedVersion) {
	c.state = infer.Unloading
	slots := slices.Clone(c.slots)
	r.task(c.ref.ID(), func() func() {
		if r.closeSlots(c.ref, slots) {
			r.check(c.ref, c.model.Close())
			r.check(c.ref, c.files.Close())
		}
		return func() { r.drop(c.ref) }
	})
}

// closeSlots closes instances at the same time, since each waits for its
// last batch. It reports whether all are closed: only then may the model be.
func (r *Reconciler) closeSlots(ref infer.ModelRef, slots []slot) bool {
	failures := make(chan error, len(slots))
	for _, l := range slots {
		go func() { failures <- r.deps.Instances.Close(r.patience, l.id) }()
	}
	closed := true
	for range slots {
		err := <-failures
		r.check(ref, err)
		closed = closed && err == nil
	}
	return closed
}

// causeOf is the sentence that tells people why a version is unavailable.
func causeOf(err error) string {
	if err == nil {
		return ""
	}
	if e := errs.From(err); errs.Classified(err) && e.Msg != "" {
		return e.Msg
	}
	return err.Error()
}
