package core

import (
	"cmp"
	"slices"
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/resources"
)

// WaitResources is why a batch waits for its turn: what it needs is in use, or
// claimed by an earlier turn. No request is refused for it.
const WaitResources errs.Reason = "resources"

// RateLimit has each execution wait until what its instance needs is free, and
// has instances take turns by their priorities.
type RateLimit struct {
	// Counts are how much there is of resources. Of one that is not named there is
	// as much as the instance needs that needs most.
	Counts resources.Counts
}

// limiter is the rate limiter. Each instance has a time at which its next turn
// begins, in turns of others: the first of those that want one goes next, and
// each turn puts the next one off by the instance's priority, which is high
// where turns are to be rare. One that has not wanted any begins with the others.
//
// A turn whose resources are not free is waited for. Until then those resources
// are for no later turn, so that who needs much of one is not overtaken for ever.
type limiter struct {
	on        bool
	perDevice uint32 // batches that may run on a device at a time; 0 is any number
	counts    resources.Counts
	resources map[resourceKey]*resource
	now       uint64 // the turn that began last
	claimed   []resourceKey
}

// resourceKey names a resource of a pool or of a device.
type resourceKey struct {
	name   string
	worker uint64 // 0 is all
	device int    // of the worker
}

// resource is how much of one is in use, and there.
type resource struct {
	used, count uint32
	fixed       bool // the count is configured
}

// need is what an execution takes of a resource.
type need struct {
	resourceKey
	count uint32
}

// turns are an instance's.
type turns struct {
	next     uint64 // when the next begins
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

// deviceResource is what a batch takes of a device where their number is bounded. No
// configuration can name it.
const deviceResource = ""

// enlist learns what an instance needs.
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
			n.count = min(n.count, have.count) // a load was to refuse more
		} else {
			have.count = max(have.count, n.count)
		}
		in.turns.needs = append(in.turns.needs, n)
	}
	l.use(in, in.running)
}

// newResource is one with its configured count, if it has one.
func (l *limiter) newResource(k resourceKey) *resource {
	r := &resource{}
	if k.worker == 0 {
		r.count, r.fixed = l.counts.OfPool(k.name)
	} else {
		r.count, r.fixed = l.counts.OfDevice(k.name, k.device)
	}
	return r
}

// ResourceUse is how much executions hold of a resource, and how much there is.
type ResourceUse struct {
	Name string
	// Device is the number of the devices that have it, whichever their workers;
	// less than 0 is the pool, which has what is global.
	Device      int
	Used, Units uint64
}

// Resources returns what the rate limiter shares out, by name and device.
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

// delist forgets an instance, and what it needed.
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

// use takes an instance's resources for so many executions, or gives them back.
func (l *limiter) use(in *instance, executions int) {
	for _, n := range in.turns.needs {
		l.resources[n.resourceKey].used += uint32(executions) * n.count //nolint:gosec // wraps for less than 0, as it should
	}
}

// affordable reports whether an instance's resources are free, and for no earlier
// turn.
func (l *limiter) affordable(in *instance) bool {
	for _, n := range in.turns.needs {
		r := l.resources[n.resourceKey]
		if r.used+n.count > r.count || slices.Contains(l.claimed, n.resourceKey) {
			return false
		}
	}
	return true
}

// begin gives an instance its turn.
func (l *limiter) begin(in *instance) {
	if l.on {
		l.now = l.turnOf(in)
		in.turns.next = l.now + in.turns.priority
	}
	l.use(in, 1)
}

// turnOf is when an instance's turn begins.
func (l *limiter) turnOf(in *instance) uint64 { return max(in.turns.next, l.now) }

// nextTurn takes the model out of the ready ones whose turn is first among those
// whose resources are free, and returns the instance that it is to run on.
func (c *Core) nextTurn() (*model, *instance) {
	c.limiter.claimed = c.limiter.claimed[:0]
	slices.SortStableFunc(c.ready, c.compareTurns)
	for i, m := range c.ready {
		claimed := c.limiter.claimed
		if c.calledFor(m) { // what claims them may wait for the call
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

// compareTurns orders ready models as policies say, and otherwise by their turns.
func (c *Core) compareTurns(a, b *model) int {
	return cmp.Or(c.compareShares(a, b), cmp.Compare(c.limiter.turnOf(a.proposal.Prefer), c.limiter.turnOf(b.proposal.Prefer)))
}

// waitForResources says once that a model's turn has come and what it needs is
// not free.
func (c *Core) waitForResources(m *model) {
	if !m.short {
		m.short = true
		c.decide(Decision{Kind: Wait, Reason: WaitResources, Unit: m.queue.first(c.now).Unit(), B: m.proposal.Size})
	}
}

// placeOf is the instance for a model's batch: the one that its batcher prefers,
// or where any will do another whose resources are free.
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

// groupOf is the group of an instance by its name, which is the group's and the
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

// deviceNumber is the number in the name of a device such as gpu:1; of others it
// is 0.
func deviceNumber(device string) (n int) {
	_, text, _ := strings.Cut(device, ":")
	for _, digit := range text {
		n = 10*n + int(digit-'0')
	}
	return n
}
