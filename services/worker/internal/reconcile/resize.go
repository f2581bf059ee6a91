package reconcile

import "slices"

// resize brings the instances of a content to other groups: those that are
// missing are made before those that are too many are retired. An instance
// that cannot be made is not tried again until the groups change.
func (r *Reconciler) resize(c *content, w want) {
	c.resizing, c.groups = true, w.groups
	add := missing(w.groups, c.lanes)
	surplus := slices.DeleteFunc(slices.Clone(c.lanes), func(l lane) bool { return wants(w.groups, l) })
	r.task(func() func() {
		instances, err := makeInstances(r.patience, c.model, add)
		return func() { r.resized(c, instances, surplus, err) }
	})
}

func wants(groups []Group, l lane) bool {
	return slices.ContainsFunc(groups, func(g Group) bool {
		count := g.Count
		g.Count = 0
		return g == l.group && l.number < count
	})
}

func (r *Reconciler) resized(c *content, instances []made, surplus []lane, err error) {
	r.check(c.ref, err)
	r.start(c, instances)
	r.task(func() func() {
		r.closeLanes(c.ref, surplus)
		return func() {
			c.resizing = false
			c.lanes = slices.DeleteFunc(c.lanes, func(l lane) bool { return slices.Contains(surplus, l) })
		}
	})
}
