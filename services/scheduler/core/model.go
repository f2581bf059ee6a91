package core

import (
	"slices"
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
)

// Idempotent is the parameter of a model's configuration that allows a request to run again if its worker is lost.
// Its value is "true".
const Idempotent = "idempotent"

// model is one loaded generation of a model version, with its queue and its instances.
type model struct {
	ref       infer.ModelRef
	queue     *queue
	batcher   batcher // nil until the configuration is known
	config    *modelconfig.Config
	removed   bool
	repeats   bool // its requests may run twice
	batched   bool // its inputs have a batch dimension
	variable  bool // its rows differ in size
	shapes    shapes
	instances []*instance          // by id
	retiring  int                  // how many of the instances retire
	awaited   bool                 // its first instance is there, or was waited for
	sequences *sequences           // nil unless it batches them
	held      []infer.HeldSequence // that workers have, until the configuration is known
	costs     map[string]*costs
	lastEnd   mono.Time // when its last batch ended
	proposal  Proposal
	short     bool      // its turn has come, but its resources are not free
	asking    bool      // in the arbiter's list of models to ask
	wake      mono.Time // when it is to be asked again; 0 is never
	timer     timer
}

// model returns the entry of ref, creating it if a grant or a configuration names ref for the first time.
func (c *Core) model(ref infer.ModelRef) *model {
	m := c.models[ref]
	if m == nil {
		m = &model{ref: ref, queue: newQueue(&c.shares, nil), costs: make(map[string]*costs)}
		m.timer.model = m
		c.models[ref] = m
	}
	return m
}

// configure gives a model its batcher. The content behind a reference never changes, so a second configuration is
// ignored.
func (c *Core) configure(e *Model) {
	m := c.model(e.Ref)
	m.removed = false
	if m.batcher != nil {
		return
	}
	var early []*Item
	for it := m.queue.first(c.now); it != nil; it = m.queue.first(c.now) {
		c.leaveWaiting(it)
		early = append(early, it)
	}
	m.queue, m.config = newQueue(&c.shares, e.Config.Batching), e.Config
	for _, in := range m.instances {
		c.limiter.enlist(in)
	}
	switch s := e.Config.Sequences; {
	case s != nil:
		m.sequences = newSequences(s)
		m.batcher = newDirect(m, e.Config)
		if s.Oldest {
			m.batcher = newOldest(m, e.Config)
		}
		for _, h := range m.held {
			c.adoptSequence(m, h)
		}
		m.held = nil
		for _, in := range m.instances {
			c.openSlots(in)
		}
	case e.Config.Batching != nil:
		m.batcher = newDynamic(m, e.Config)
	default:
		m.batcher = &none{model: m}
	}
	m.repeats = e.Config.Parameters[Idempotent] == "true"
	m.batched = e.Config.MaxBatchSize > 0
	for i := range e.Config.Inputs {
		m.variable = m.variable || !e.Config.Inputs[i].Dims.Fixed()
	}
	for _, it := range early {
		c.queue(m, it)
	}
	c.touch(m)
}

// queue adds an admitted item to its model's queue, or refuses it if the queue policy requires that.
func (c *Core) queue(m *model, it *Item) {
	if reason := c.join(m, it); reason != "" {
		c.end(it, Refuse, reason, 0)
		return
	}
	c.enroll(it)
	c.timers.set(&it.timer, mono.Earliest(it.Deadline, it.timeout))
	c.touch(m)
}

// join puts an item into the model's queue, if there is room.
func (c *Core) join(m *model, it *Item) errs.Reason {
	var s *sequence
	if m.sequences != nil {
		var reason errs.Reason
		if s, reason = c.sequenceOf(m, it); reason != "" {
			return reason
		}
	}
	it.shape = shape{}
	if m.variable {
		it.shape = m.shapes.of(m.rowElements(it.Request))
	}
	c.makeRoomInLevel(m, it)
	if reason := m.queue.push(it); reason != "" {
		return reason
	}
	if !c.makeRoom(m, it) {
		m.queue.remove(it)
		return errs.QueueFull
	}
	it.model = m
	c.waiting.add(it, 1)
	if s != nil {
		c.enqueue(s, it)
	}
	return ""
}

func (c *Core) remove(ref infer.ModelRef) {
	if m := c.models[ref]; m != nil {
		m.removed = true
		c.forgetModel(m)
	}
}

// forgetModel drops a model that is not known to be in the repository and has neither instances nor waiting requests.
func (c *Core) forgetModel(m *model) {
	if (m.removed || m.batcher == nil) && len(m.instances) == 0 && m.queue.requests == 0 {
		c.forgetSequences(m)
		c.timers.set(&m.timer, 0)
		delete(c.models, m.ref)
	}
}

// modelsInOrder returns all models sorted, so that equal histories produce equal decisions.
func (c *Core) modelsInOrder() []*model {
	list := make([]*model, 0, len(c.models))
	for _, m := range c.models {
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b *model) int { return a.ref.Compare(b.ref) })
	return list
}

// costsOn returns the model's costs on a device such as gpu:1.
func (m *model) costsOn(device string) *costs {
	kind, _, _ := strings.Cut(device, ":")
	c := m.costs[kind]
	if c == nil {
		c = new(costs)
		m.costs[kind] = c
	}
	return c
}

// onTime returns the time by which to judge a batch: when the model wanted to be asked, if it is asked later. Items
// that waited for others would have been in time then.
func (m *model) onTime(now mono.Time) mono.Time {
	if m.wake != 0 && m.wake < now {
		return m.wake
	}
	return now
}

// free returns the instance for the next batch, whose first item needs the given number of bytes: on the fastest kind
// of device, then with the fewest batches, then in the lowest slot. A kind that has not been measured counts as fast,
// so that it gets measured. Retiring instances are eligible only if no others are left, since somebody must drain the
// queue. short says that only memory is missing.
func (m *model) free(need int64) (best *instance, short bool) {
	drain := m.retiring == len(m.instances)
	for _, in := range m.instances {
		switch {
		case !in.free() || in.retiring != drain:
		case !in.fits(0, need):
			short = true
		case best == nil || in.before(best):
			best = in
		}
	}
	return best, short && best == nil
}

// couldRun reports whether an instance could run any of the waiting items.
func (m *model) couldRun() bool {
	if m.sequences == nil {
		in, _ := m.free(0)
		return in != nil
	}
	return slices.ContainsFunc(m.instances, func(in *instance) bool {
		return in.takesSequences() && slices.ContainsFunc(in.slots, func(s *sequence) bool { return s.ready() != nil })
	})
}

// soonFree returns the instance that will be free first among those that accept a pipelined batch, or nil.
func (m *model) soonFree(now mono.Time, need int64) *instance {
	var best *instance
	for _, in := range m.instances {
		if in.pipelines(now) && in.fits(0, need) && (best == nil || in.freeAt(now) < best.freeAt(now)) {
			best = in
		}
	}
	return best
}
