package core

import (
	"slices"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// calls are the batches that wait for requests which their own models have made. The core refuses a call that could
// never run: one where every instance that could run it is occupied by a batch that waits for it, directly or through
// other calls.
//
// # The graph
//
// A batch occupies its instance, with its resources and memory, until the instance moves on, which it cannot do until
// all calls of the batch have ended. A waiting call needs one of the instances of its model. A running call ends when
// its own unit does, which waits for the calls of that unit and those of its whole batch. In a decoupled model, calls
// of a single unit block only that unit; the instance moves on without them.
//
// # The check
//
// The check reduces the graph, as deadlock detection for resources with several units does. At first, no call is
// known to end. A call is found to end if an instance is available that such calls do not occupy, or if its unit
// waits for none of them; that frees further instances, and the check repeats until nothing changes. A call that is
// left waits forever, unless some model loses what it occupies.
//
// The core runs the check when a call is queued that no instance accepts immediately, when a call's model loses an
// instance, and when a call gets a slot of one. Every deadlock arises from one of these events, so no other step pays
// for it. A check costs the number of calls in flight times their nesting depth; clients' requests involve none.
type calls struct {
	callers []*Batch // with calls, ordered by their first call
	doubted []*model // whose calls are to be checked again
	round   uint64   // number of the check
}

// holders are the resources held by batches that wait for calls not known to end.
type holders struct {
	batches   map[*instance]int
	resources map[resourceKey]uint32
	bytes     map[*worker]int64
}

// enterCall makes the parent's batch wait for an item, if the item is a call, and reports whether the call could wait
// forever.
func (c *Core) enterCall(it *Item) (deadlocked bool) {
	parent := it.Request.Parent.Batch
	if parent == (infer.BatchID{}) {
		return false // a client's
	}
	b := c.batches[parent]
	if b == nil {
		return false // it has moved on
	}
	c.awaitCall(b, it)
	return c.deadlocked(it)
}

func (c *Core) awaitCall(b *Batch, it *Item) {
	if b.calls.n == 0 {
		b.calls.by = ofParent
		c.callers = append(c.callers, b)
	}
	it.parent = b
	b.calls.push(it)
}

// leaveCall ends the wait of an item's parent for the item.
func (c *Core) leaveCall(it *Item) {
	b := it.parent
	if b == nil {
		return
	}
	it.parent = nil
	b.calls.remove(it)
	if b.calls.n == 0 {
		at := slices.Index(c.callers, b)
		c.callers = slices.Delete(c.callers, at, at+1)
	}
}

// leaveCalls ends a batch's wait for its calls. The calls continue.
func (c *Core) leaveCalls(b *Batch) {
	for b.calls.head != nil {
		c.leaveCall(b.calls.head)
	}
}

// doubt schedules the calls that wait for a model to be checked again.
func (c *Core) doubt(m *model) {
	if len(c.callers) > 0 && !slices.Contains(c.doubted, m) {
		c.doubted = append(c.doubted, m)
	}
}

// recheckCalls refuses calls that would wait forever because fewer instances can run them.
func (c *Core) recheckCalls() {
	if len(c.doubted) == 0 {
		return
	}
	doubted := c.doubted
	c.doubted = nil
	var waiting []*Item
	for _, b := range c.callers {
		for it := b.calls.head; it != nil; it = it.links[ofParent].next {
			if it.waits() && slices.Contains(doubted, it.model) {
				waiting = append(waiting, it)
			}
		}
	}
	for _, it := range waiting {
		if it.parent != nil && c.deadlocked(it) { // refusing one may unblock others
			c.touch(it.model)
			c.end(it, Refuse, errs.CallDeadlock, 0)
		}
	}
}

// waits reports whether an item is in its model's queue.
func (it *Item) waits() bool { return it.batch == nil && !it.parked }

// calledFor reports whether a call waits for a model.
func (c *Core) calledFor(m *model) bool {
	for _, b := range c.callers {
		for it := b.calls.head; it != nil; it = it.links[ofParent].next {
			if it.waits() && it.model == m {
				return true
			}
		}
	}
	return false
}

// deadlocked reports whether a waiting call would wait forever.
func (c *Core) deadlocked(it *Item) bool {
	if !c.limiter.on && it.model.sequences == nil {
		if in, _ := it.model.free(it.model.queue.largest); in != nil {
			return false
		}
	}
	c.calls.round++
	for changed := true; changed && it.ends != c.calls.round; {
		changed = false
		h := c.holders()
		for _, b := range c.callers {
			for call := b.calls.head; call != nil; call = call.links[ofParent].next {
				if call.ends != c.calls.round && c.willEnd(call, &h) {
					call.ends, changed = c.calls.round, true
				}
			}
		}
	}
	return it.ends != c.calls.round
}

// holders adds up what batches hold that wait for calls not known to end.
func (c *Core) holders() holders {
	h := holders{batches: make(map[*instance]int), resources: make(map[resourceKey]uint32), bytes: make(map[*worker]int64)}
	for _, b := range c.callers {
		in := b.instance
		if in == nil || !c.heldUp(b) {
			continue
		}
		h.batches[in]++
		h.bytes[in.worker] += b.bytes
		for _, n := range in.turns.needs {
			h.resources[n.resourceKey] += n.count
		}
	}
	return h
}

// heldUp reports whether a batch occupies its instance because of a call that is not known to end.
func (c *Core) heldUp(b *Batch) bool {
	decoupled := b.instance.model.decoupled()
	for call := b.calls.head; call != nil; call = call.links[ofParent].next {
		if call.ends != c.calls.round && (!decoupled || !call.Request.Parent.Alone) {
			return true
		}
	}
	return false
}

// willEnd reports whether a call ends even if the calls that are not known to end do not.
func (c *Core) willEnd(it *Item, h *holders) bool {
	switch b := it.batch; {
	case it.parked:
		return true
	case b == nil:
		return it.model.takes(it, h, &c.limiter)
	default:
		return !c.unitHeldUp(b, it.Unit())
	}
}

// unitHeldUp reports whether a unit of a batch waits for a call that is not known to end.
func (c *Core) unitHeldUp(b *Batch, u infer.Unit) bool {
	whole := b.instance != nil && !b.instance.model.decoupled() // it ends with its batch
	for call := b.calls.head; call != nil; call = call.links[ofParent].next {
		p := &call.Request.Parent
		if call.ends != c.calls.round && (whole || !p.Alone || keyOf(p.Unit) == keyOf(u)) {
			return true
		}
	}
	return false
}

func (m *model) decoupled() bool { return m.config != nil && m.config.Decoupled }

// takes reports whether an instance of the model will be free for a waiting call once everything but what the holders
// have is released. The instance also needs enough memory for what may go before the call.
func (m *model) takes(it *Item, h *holders, l *limiter) bool {
	if m.batcher == nil || len(m.instances) == 0 {
		return true // what becomes of it is not up to calls
	}
	candidates := m.instances
	if s := it.sequence; s != nil && !s.backlog {
		if s.instance == nil {
			return true
		}
		candidates = []*instance{s.instance}
	}
	drain := m.retiring == len(m.instances)
	for _, in := range candidates {
		if in.retiring && !drain && it.sequence == nil {
			continue
		}
		if h.batches[in] < in.atOnce() && h.leave(in, m.queue.largest, l) {
			return true
		}
	}
	return false
}

// atOnce returns how many batches an instance runs at a time.
func (in *instance) atOnce() int {
	if in.model.sequences != nil {
		return 1
	}
	return max(in.credits+in.running-in.pipelined, 1)
}

// leave reports whether the holders leave enough resources for an execution on an instance, and memory for the given
// number of bytes.
func (h *holders) leave(in *instance, bytes int64, l *limiter) bool {
	if held := h.bytes[in.worker]; in.worker.memory > 0 && held > 0 && held+bytes > in.worker.memory {
		return false
	}
	for _, n := range in.turns.needs {
		if h.resources[n.resourceKey]+n.count > l.resources[n.resourceKey].count {
			return false
		}
	}
	return true
}
