package reconcile

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/source"
)

// content is what the worker holds of one generation. It is owned by the
// loop, but for what was loaded, which is not changed once it is set.
type content struct {
	held
	// cause is why it is unavailable, or why its instances are not those
	// that were asked for last.
	cause error
	loaded
	lanes  []lane
	cancel context.CancelFunc // of the load
	// progress is how its fetch goes on while it loads.
	progress source.Progress
	// abandoned says that nobody wanted the content while it was loaded.
	abandoned bool
}

// loaded is a model version in memory, and the files that it is made of.
type loaded struct {
	version backend.Version
	files   source.Files
	model   backend.Model
	bytes   int64 // of the files
	// memory is what the model and its instances have taken, in bytes.
	memory uint64
}

// lane is an open instance, of the number within its group.
type lane struct {
	id     infer.InstanceID
	name   string
	group  Group // its Count is 0: groups of different sizes share instances
	number int
}

// made is an instance that is not open yet.
type made struct {
	lane
	instance backend.Instance
}

func (r *Reconciler) anyReady() bool {
	for _, contents := range r.have {
		for _, c := range contents {
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

// load starts to load a content.
func (r *Reconciler) load(w want) {
	ctx, cancel := context.WithCancel(r.patience)
	c := &content{
		held:   held{ref: w.ref, state: infer.Loading, groups: w.groups},
		loaded: loaded{version: backend.Version{Ref: w.ref, Config: w.content.Config}}, cancel: cancel,
	}
	r.keep(c)
	turn := r.turn()
	r.task(w.ref.ID(), func() func() {
		defer cancel()
		if err := turn.take(ctx); err != nil {
			return func() { r.failed(c, 0, err) }
		}
		defer turn.end()
		l, instances, took, err := r.attempts(ctx, w, r.follow(ctx, c))
		if err == nil && ctx.Err() != nil {
			err = ctx.Err()
			r.discard(l, instances)
		}
		if err != nil {
			return func() { r.failed(c, took, err) }
		}
		return func() { r.opened(c, l, instances, took) }
	})
}

// follow returns what takes the progress of a content's fetch. It never waits for
// a loop that drains.
func (r *Reconciler) follow(ctx context.Context, c *content) func(source.Progress) {
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
func missing(groups []Group, have []lane) []lane {
	var list []lane
	for _, g := range groups {
		count := g.Count
		g.Count = 0
		for n := range count {
			same := func(l lane) bool { return l.group == g && l.number == n }
			if !slices.ContainsFunc(have, same) {
				list = append(list, lane{name: fmt.Sprintf("%s_%d", g.Name, n), group: g, number: n})
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

// abandon gives up a load, as far as the backend can.
func (c *content) abandon() {
	c.abandoned = true
	c.cancel()
}

// opened takes what was loaded, and opens its instances.
func (r *Reconciler) opened(c *content, l loaded, instances []made, took time.Duration) {
	c.loaded = l
	r.start(c, instances)
	c.state = infer.Ready
	r.settle(c)
	r.deps.Loaded(c.version, took, nil)
}

// failed takes the end of a load that came to nothing. One that was given up
// says nothing about the content, which may be wanted again by now.
func (r *Reconciler) failed(c *content, took time.Duration, err error) {
	if c.abandoned {
		r.drop(c.ref)
		return
	}
	c.state, c.cause = infer.Unavailable, err
	r.deps.Loaded(c.version, took, err)
}

// start opens instances, which offers them to the scheduler.
func (r *Reconciler) start(c *content, instances []made) {
	for _, m := range instances {
		m.id = r.deps.Lanes.Open(Lane{
			Model: c.ref, Name: m.name, Device: m.group.Place(), Passive: m.group.Passive, Instance: m.instance,
		})
		c.lanes = append(c.lanes, m.lane)
	}
}

// settle marks the content as settled after a while.
func (r *Reconciler) settle(c *content) {
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

// unload starts to retire a content's instances and to close it.
func (r *Reconciler) unload(c *content) {
	c.state = infer.Unloading
	lanes := slices.Clone(c.lanes)
	r.task(c.ref.ID(), func() func() {
		if r.closeLanes(c.ref, lanes) {
			r.check(c.ref, c.model.Close())
			r.check(c.ref, c.files.Close())
		}
		return func() { r.drop(c.ref) }
	})
}

// closeLanes closes instances at the same time, since each waits for its
// last order. It reports whether all are closed: only then may the model be.
func (r *Reconciler) closeLanes(ref infer.ModelRef, lanes []lane) bool {
	failures := make(chan error, len(lanes))
	for _, l := range lanes {
		go func() { failures <- r.deps.Lanes.Close(r.patience, l.id) }()
	}
	closed := true
	for range lanes {
		err := <-failures
		r.check(ref, err)
		closed = closed && err == nil
	}
	return closed
}

// causeOf is the sentence that tells people why a content is unavailable.
func causeOf(err error) string {
	if err == nil {
		return ""
	}
	if e := errs.From(err); errs.Of(err) != errs.Bug && e.Msg != "" {
		return e.Msg
	}
	return err.Error()
}
