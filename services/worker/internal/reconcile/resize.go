package reconcile

import (
	"context"
	"slices"
)

// resize changes the instances of a version to other groups without reloading it: it creates and opens missing
// instances before it retires surplus ones, and leaves those in both groups alone. If an instance cannot be created,
// nothing changes, and resize does not retry until the groups change.
func (r *Reconciler) resize(c *loadedVersion, w want) {
	before := c.groups
	c.resizing, c.groups = true, w.groups
	if w.err != nil {
		r.resized(c, nil, nil, w.err)
		return
	}
	add := missing(w.groups, c.slots)
	surplus := slices.DeleteFunc(slices.Clone(c.slots), func(l slot) bool { return wants(w.groups, l) })
	bounds := r.limits(c.version.Config)
	ctx, cancel := context.WithCancel(r.patience)
	c.cancel = cancel
	r.task(c.ref.ID(), func() func() {
		defer cancel()
		load := r.deps.Meter.Begin(c.bytes)
		instances, err := r.extend(ctx, bounds, c, add)
		taken := load.End()
		return func() {
			c.memory += taken
			abandoned := c.abandoned
			if c.abandoned = false; abandoned && err != nil { // which says nothing about the groups: they may be wanted again
				c.resizing, c.groups = false, before
				return
			}
			r.resized(c, instances, surplus, err)
		}
	})
}

// extend creates further instances. It counts as a load, since it costs the same.
func (r *Reconciler) extend(ctx context.Context, bounds limits, c *loadedVersion, add []slot) (list []unopened, err error) {
	if len(add) == 0 {
		return nil, nil
	}
	if err := bounds.acquire(ctx); err != nil {
		return nil, err
	}
	defer bounds.release()
	list, err = r.makeInstances(ctx, &c.loaded, add)
	if err == nil && len(c.version.Config.Warmup) > 0 { // the samples were read again
		err = c.files.Verify(ctx)
	}
	if err != nil {
		r.closeInstances(ctx, c.ref, list)
		return nil, err
	}
	return list, nil
}

func wants(groups []Group, l slot) bool {
	return slices.ContainsFunc(groups, func(g Group) bool {
		count := g.Count
		g.Count = 0
		return g == l.group && l.number < count
	})
}

func (r *Reconciler) resized(c *loadedVersion, instances []unopened, surplus []slot, err error) {
	c.cause = err
	if err != nil {
		c.resizing = false
		r.deps.Failed(c.ref, err)
		return
	}
	r.start(c, instances)
	r.task(c.ref.ID(), func() func() {
		r.closeSlots(c.ref, surplus)
		return func() {
			c.resizing = false
			all := len(c.slots)
			c.slots = slices.DeleteFunc(c.slots, func(l slot) bool { return slices.Contains(surplus, l) })
			for _, l := range surplus {
				delete(c.away, l.id)
			}
			if all > 0 {
				c.memory = c.memory * uint64(len(c.slots)) / uint64(all)
			}
		}
	})
}
