package core

import (
	"cmp"
	"slices"
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/resources"
)

// WaitResources is the reason why a batch waits for its turn: the resources that it needs are in use, or claimed by
// an earlier turn. No request is refused for it.
const WaitResources errs.Reason = "resources"

// RateLimit makes each execution wait until the resources that its instance needs are free, and makes instances take
// turns by their priorities.
type RateLimit struct {
	// Counts are the configured amounts of resources. A resource without a count has as many units as the most
	// demanding instance needs.
	Counts resources.Counts
}

// limiter is the rate limiter. Each instance has a time at which its next turn starts, measured in turns of others.
// Among the instances that want a turn, the one with the earliest time goes next, and each turn delays the instance's
// next one by its priority: a high value means rare turns. An instance that has not wanted any starts level with the
// others.
//
// If the resources for a turn are not free, the limiter waits for them. Until then, no later turn may use them, so an
// instance that needs many units is not starved.
type limiter struct {
	on        bool
	perDevice uint32 // batches that may run on a device at a time; 0 is any number
	counts    resources.Counts
	resources map[resourceKey]*resource
	now       uint64 // when the latest turn started
	claimed   []resourceKey
}

// resourceKey identifies a resource of the pool or of a device.
type resourceKey struct {
	name   string
	worker uint64 // 0 is the pool
	device int    // of the worker
}

// resource is how much of a resource is in use, and how much there is.
type resource struct {
	used, count uint32
	fixed       bool // the count is configured
}

// need is how much an execution uses of a resource.
type need struct {
	resourceKey
	count uint32
}

// turns is the turn state of an instance.
type turns struct {
	next     uint64 // when the next starts
	priority uint64
	needs    []need
}

func newLimiter(c *RateLimit, perDevice int) limiter {
	l := limiter{on: c != nil || perDevice > 0, perDevice: uint32(max(perDevice, 0)), resources: make(map[resourceKey]*resource)} //nolint:gosec // checked
	if c != nil {
		l.counts = c.Counts
	}
	return l
}

// deviceResource is the resource that a batch uses on a device whose number of batches is limited. No configuration
// can name it.
const deviceResource = ""

// enlist registers what an instance needs.
func (l *limiter) enlist(in *instance) {
	if !l.on || in.model.config == nil {
		return
	}
	group := groupOf(in.model.config, in.name)
	in.turns = turns{priority: 1}
	if l.perDevice > 0 {
		key := resourceKey{deviceResource, in.id.Worker, in.number}
		if l.resources[key] == nil {
			l.resources[key] = &resource{count: l.perDevice, fixed: true}
		}
		in.turns.needs = append(in.turns.needs, need{key, 1})
	}
	if group == nil {
		l.use(in, in.running)
		return
	}
	in.turns.priority = uint64(max(group.Priority, 1))
	for _, r := range group.Resources {
		n := need{resourceKey{name: r.Name}, r.Count}
		if !r.Global {
			n.worker, n.device = in.id.Worker, in.number
		}
		have := l.resources[n.resourceKey]
		if have == nil {
			have = l.newResource(n.resourceKey)
			l.resources[n.resourceKey] = have
		}
		if have.fixed {
			n.count = min(n.count, have.count) // loading refuses models that need more
		} else {
			have.count = max(have.count, n.count)
		}
		in.turns.needs = append(in.turns.needs, n)
	}
	l.use(in, in.running)
}

// newResource returns a resource with its configured count, if it has one.
func (l *limiter) newResource(k resourceKey) *resource {
	r := &resource{}
	if k.worker == 0 {
		r.count, r.fixed = l.counts.OfPool(k.name)
	} else {
		r.count, r.fixed = l.counts.OfDevice(k.name, k.device)
	}
	return r
}

// ResourceUse is how much executions use of a resource, and how much there is.
type ResourceUse struct {
	Name string
	// Device is the number of the devices that have the resource, on any worker. A negative number is the pool, which
	// has the global resources.
	Device      int
	Used, Units uint64
}

// Resources returns the resources that the rate limiter manages, by name and device.
func (c *Core) Resources() []ResourceUse {
	var list []ResourceUse
	for k, r := range c.limiter.resources {
		if k.name == deviceResource {
			continue
		}
		device := k.device
		if k.worker == 0 {
			device = -1
		}
		i := slices.IndexFunc(list, func(u ResourceUse) bool { return u.Name == k.name && u.Device == device })
		if i < 0 {
			i, list = len(list), append(list, ResourceUse{Name: k.name, Device: device})
		}
		list[i].Used += uint64(r.used)
		list[i].Units += uint64(r.count)
	}
	slices.SortFunc(list, func(a, b ResourceUse) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Device, b.Device))
	})
	return list
}

// delist removes an instance and its needs.
func (c *Core) delist(in *instance) {
	c.limiter.use(in, -in.running)
	for _, n := range in.turns.needs {
		r := c.limiter.resources[n.resourceKey]
		if r.fixed {
			continue
		}
		r.count = 0
		for _, other := range c.instances {
			for _, need := range other.turns.needs {
				if need.resourceKey == n.resourceKey {
					r.count = max(r.count, need.count)
				}
			}
		}
	}
	in.turns = turns{}
}

// use acquires an instance's resources for the given number of executions, or releases them if it is negative.
func (l *limiter) use(in *instance, executions int) {
	for _, n := range in.turns.needs {
		l.resources[n.resourceKey].used += uint32(executions) * n.count //nolint:gosec // wraps for less than 0, as it should
	}
}

// affordable reports whether an instance's resources are free, and not claimed by an earlier turn.
func (l *limiter) affordable(in *instance) bool {
	for _, n := range in.turns.needs {
		r := l.resources[n.resourceKey]
		if r.used+n.count > r.count || slices.Contains(l.claimed, n.resourceKey) {
			return false
		}
	}
	return true
}

// begin starts an instance's turn.
func (l *limiter) begin(in *instance) {
	if l.on {
		l.now = l.turnOf(in)
		in.turns.next = l.now + in.turns.priority
	}
	l.use(in, 1)
}

// turnOf returns when an instance's next turn starts.
func (l *limiter) turnOf(in *instance) uint64 { return max(in.turns.next, l.now) }

// nextTurn removes the model from the ready ones whose turn is first among those with free resources, and returns it
// with the instance that it is to run on.
func (c *Core) nextTurn() (*model, *instance) {
	c.limiter.claimed = c.limiter.claimed[:0]
	slices.SortStableFunc(c.ready, c.compareTurns)
	for i, m := range c.ready {
		claimed := c.limiter.claimed
		if c.calledFor(m) { // the batch that holds them may wait for the call
			c.limiter.claimed = nil
		}
		in := c.placeOf(m)
		c.limiter.claimed = claimed
		if in != nil {
			c.ready = slices.Delete(c.ready, i, i+1)
			return m, in
		}
		c.waitForResources(m)
		for _, n := range m.proposal.Prefer.turns.needs {
			c.limiter.claimed = append(c.limiter.claimed, n.resourceKey)
		}
	}
	return nil, nil
}

// compareTurns orders ready models as policies decide, and otherwise by their turns.
func (c *Core) compareTurns(a, b *model) int {
	return cmp.Or(c.compareShares(a, b), cmp.Compare(c.limiter.turnOf(a.proposal.Prefer), c.limiter.turnOf(b.proposal.Prefer)))
}

// waitForResources reports once that a model's turn has come but its resources are not free.
func (c *Core) waitForResources(m *model) {
	if !m.short {
		m.short = true
		c.decide(Decision{Kind: Wait, Reason: WaitResources, Unit: m.queue.first(c.now).Unit(), B: m.proposal.Size})
	}
}

// placeOf returns the instance for a model's batch: the one that its batcher prefers or, if any will do, another one
// whose resources are free.
func (c *Core) placeOf(m *model) *instance {
	l := &c.limiter
	if in := m.proposal.Prefer; l.affordable(in) {
		return in
	}
	if m.proposal.Bound {
		return nil
	}
	var best *instance
	need := m.queue.first(c.now).Bytes
	for _, in := range m.instances {
		if in.free() && !in.retiring && in.fits(0, need) && l.affordable(in) && (best == nil || l.turnOf(in) < l.turnOf(best)) {
			best = in
		}
	}
	return best
}

// groupOf returns the group of an instance by the instance's name, which consists of the group's name and the
// instance's number.
func groupOf(c *modelconfig.Config, name string) *modelconfig.InstanceGroup {
	at := strings.LastIndexByte(name, '_')
	for i := range c.Groups {
		if at >= 0 && c.Groups[i].Name == name[:at] {
			return &c.Groups[i]
		}
	}
	return nil
}

// deviceNumber returns the number in the name of a device such as gpu:1; 0 if there is none.
func deviceNumber(device string) (n int) {
	_, text, _ := strings.Cut(device, ":")
	for _, digit := range text {
		n = 10*n + int(digit-'0')
	}
	return n
}
