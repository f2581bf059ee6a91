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

// loadedVersion is what the worker has of one generation. The loop owns it, except for what was loaded, which does
// not change once it is set.
type loadedVersion struct {
	held
	// cause is why it is unavailable, or why its instances are not those that were last asked for.
	cause error
	loaded
	slots  []slot
	away   map[infer.InstanceID]error // instances that are away, and why
	cancel context.CancelFunc         // of the load, or of the resize
	// progress is the progress of its fetch while it loads.
	progress source.Progress
	// abandoned says that the version was no longer wanted while it was being loaded or resized.
	abandoned bool
}

// loaded is a model version in memory, and its files.
type loaded struct {
	version backend.Version
	files   source.Files
	model   backend.Model
	// sequences is what its instances share for sequences; nil if it batches none.
	sequences *sequence.Model
	bytes     int64 // of the files
	// memory is how many bytes the model and its instances use.
	memory uint64
}

// slot is an instance, wanted or open, with its number within its group.
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
	warmed   []infer.Cost // its warmup executions
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

// follow returns a function that records the progress of a version's fetch. It never waits for a loop that is
// draining.
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

// missing lists the instances that the groups ask for and that are not in have.
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

// abandon cancels a load or a resize, as far as the backend allows.
func (c *loadedVersion) abandon() {
	c.abandoned = true
	c.cancel()
}

// opened records what was loaded, and opens its instances.
func (r *Reconciler) opened(c *loadedVersion, l loaded, instances []unopened, took time.Duration) {
	c.loaded = l
	r.start(c, instances)
	c.state = infer.Ready
	r.settle(c)
	r.deps.Loaded(c.version, took, nil)
}

// failed records that a load failed. A load that was canceled says nothing about the version, which may be wanted
// again by now.
func (r *Reconciler) failed(c *loadedVersion, took time.Duration, err error) {
	if c.abandoned {
		r.drop(c.ref)
		return
	}
	c.state, c.cause = infer.Unavailable, err
	r.deps.Loaded(c.version, took, err)
}

// start opens instances, which grants them to the scheduler.
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

// unload starts to retire a version's instances and to close the version.
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

// closeSlots closes instances concurrently, since each waits for its last batch. It reports whether all are closed:
// only then may the model be closed.
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

// causeOf returns the text that explains why a version is unavailable.
func causeOf(err error) string {
	if err == nil {
		return ""
	}
	if e := errs.From(err); errs.Classified(err) && e.Msg != "" {
		return e.Msg
	}
	return err.Error()
}
