package core

import (
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/invariant"
	"github.com/nereid-serving/nereid/libs/mono"
)

// Config limits what may wait in the whole pool, parked or queued. The core refuses requests beyond the limits with
// queue_full. Zero is no limit.
type Config struct {
	// MaxRequests is how many requests may wait.
	MaxRequests int
	// MaxBytes is how many bytes the waiting requests may occupy. A single larger request is admitted when nothing
	// waits; otherwise it could never run.
	MaxBytes int64
	// RateLimit, unless nil, makes executions wait for resources and take turns.
	RateLimit *RateLimit
	// DeviceBatches is how many batches may run on a device at a time, so that batches go in the order that policies
	// set instead of all at once. Zero is no limit.
	DeviceBatches int
}

// Core is the scheduler of one pool. It is not safe for concurrent use.
type Core struct {
	membership
	requests
	calls
	arbiter
	limiter   limiter
	shares    shares
	config    Config
	now       mono.Time
	models    map[infer.ModelRef]*model
	instances map[infer.InstanceID]*instance
	batches   map[infer.BatchID]*Batch
	lastBatch uint64
	timers    timers
	decisions []Decision
}

// New returns an empty core. It decides nothing until it leads.
func New(config Config) *Core {
	return &Core{
		membership: membership{workers: make(map[uint64]*worker), leases: make(map[string]lease)},
		requests: requests{
			items: make(map[infer.Unit]*Item), gateways: make(map[uint64]*gateway), interrupted: make(map[sequenceName]infer.RequestID),
		},
		config:    config,
		limiter:   newLimiter(config.RateLimit, config.DeviceBatches),
		shares:    newShares(),
		models:    make(map[infer.ModelRef]*model),
		instances: make(map[infer.InstanceID]*instance),
		batches:   make(map[infer.BatchID]*Batch),
	}
}

// Step handles one event at the time now, which must not run backwards. The returned decisions, and the batches and
// completions that they name, are valid until the next Step.
func (c *Core) Step(now mono.Time, e *Event) []Decision {
	clear(c.decisions)
	c.decisions = c.decisions[:0]
	c.recycle()
	c.now = now
	c.expire()
	c.handle(e)
	for budget := stride; ; {
		budget -= c.workOff(budget)
		c.recheckCalls()
		if len(c.asking) == 0 {
			break
		}
		c.arbitrate()
	}
	if invariant.Enabled {
		c.check()
	}
	return c.decisions
}

func (c *Core) decide(d Decision) { c.decisions = append(c.decisions, d) }

func (c *Core) handle(e *Event) {
	switch e.Kind {
	case Submit:
		c.submit(e.Item)
	case Cancel:
		c.cancel(e.Unit)
	case Configure:
		c.configure(e.Model)
	case Remove:
		c.remove(e.Model.Ref)
	case Learned:
		c.learned(e.Model.Ref, e.Costs)
	case Granted:
		c.grant(e.Grant)
	case Retire:
		c.retire(e.Instance)
	case InstanceFree:
		c.free(e)
	case UnitDone:
		c.done(e.Done)
	case MemoryReported:
		c.reportMemory(e.Instance.Worker, e.Memory)
	case BatchReturned:
		c.takeBack(e.Batches[0], e.Reason)
	case BecomeLeader:
		c.becomeLeader(e)
	case StepDown:
		c.stepDown()
	case LeaseHeld:
		c.hold(e.Key, lease{e.Instance.Worker, e.Revision}, false)
	case LeaseEnded:
		c.hold(e.Key, lease{0, e.Revision}, e.Released)
	case WorkerConnected:
		c.connect(e.Instance.Worker, e.Held)
	case WorkerDisconnected:
		c.part(e)
	case WorkerLost:
		switch w := c.workers[e.Instance.Worker]; {
		case w == nil:
		case e.Released:
			c.leave(w)
		default:
			w.leased, w.replaced = false, true
			c.lose(w)
		}
	case GatewayDisconnected:
		c.disconnect(e.Origin)
	case Recorded:
		c.recorded(e.Version)
	}
}

// NextWake returns when the core needs a Tick if no other event arrives first; 0 is never.
func (c *Core) NextWake() mono.Time {
	if !c.Settled() {
		return c.now
	}
	return c.timers.next()
}

// Settled reports whether all effects of past events have been worked off. If not, the next step continues with them.
func (c *Core) Settled() bool { return len(c.sweeps) == 0 && c.recheck == 0 }

// Counts returns the totals.
func (c *Core) Counts() Counts { return c.counts }

// InFlight returns the number of units that wait or run.
func (c *Core) InFlight() int { return len(c.items) }

// Load is how many requests wait and run in the pool.
type Load struct {
	Waiting, Running int
	// Full is how full the queue is, from 0 (empty) to 1 (at its limits); 0 without limits.
	Full float64
}

// Load returns the pool's load, in constant time.
func (c *Core) Load() Load {
	full := max(share(float64(c.waiting.requests), float64(c.config.MaxRequests)), share(float64(c.waiting.bytes), float64(c.config.MaxBytes)))
	return Load{Waiting: c.waiting.requests, Running: len(c.items) - c.waiting.requests, Full: min(full, 1)}
}

func share(n, of float64) float64 {
	if of == 0 {
		return 0
	}
	return n / of
}

// Queue describes the waiting and running requests of a loaded generation.
type Queue struct {
	Waiting, Running int
	// ForResources is how many of the waiting requests wait because the rate limiter does not have the resources that
	// the first of them needs.
	ForResources int
	// Oldest is when the oldest waiting request arrived; 0 if none waits.
	Oldest mono.Time
	// Sequences are the sequences of a model that batches them, otherwise nil.
	Sequences *Sequences
}

// Queues returns the queue of each loaded generation.
func (c *Core) Queues() map[infer.ModelRef]Queue {
	queues := make(map[infer.ModelRef]Queue, len(c.models))
	for ref, m := range c.models {
		q := Queue{Waiting: m.queue.requests, Oldest: m.queue.oldest(), Sequences: m.countSequences()}
		if m.short {
			q.ForResources = q.Waiting
		}
		queues[ref] = q
	}
	for _, b := range c.batches {
		if q, ok := queues[b.Model]; ok { // otherwise an earlier scheduler dispatched it, and its instance is not granted yet
			q.Running += b.open
			queues[b.Model] = q
		}
	}
	return queues
}

// check verifies the core's invariants: its counters must match its contents.
func (c *Core) check() {
	waiting, running := c.parked.n, 0
	for _, m := range c.models {
		waiting += m.queue.requests
		m.checkSequences()
		stalls := m.batcher != nil && m.queue.requests > 0 && m.couldRun() && m.timer.pos == 0 && m.proposal.Reason == "" && !slices.Contains(c.ready, m)
		invariant.Check(!stalls, "%d items of %v wait beside a free instance, and no time is set to look again", m.queue.requests, m.ref)
	}
	batches, work := make(map[*instance]int), make(map[*instance]time.Duration)
	for id, b := range c.batches {
		open := 0
		for _, it := range b.Items {
			if it != nil {
				open++
			}
		}
		// All units of an adopted batch may run elsewhere too.
		invariant.Check(open == b.open && (open > 0 || b.Adopted), "%d items of batch %v, %d counted", open, id, b.open)
		running += open
		batches[b.instance]++
		work[b.instance] += b.takes
	}
	for id, w := range c.workers {
		used := int64(0)
		for _, b := range w.batches {
			if b.instance != nil {
				used += b.bytes
			}
		}
		invariant.Check(w.used == used, "the batches of worker %d have %d bytes, %d counted", id, used, w.used)
	}
	for id, in := range c.instances {
		invariant.Check(in.running == batches[in], "%d batches run on %v, %d counted", batches[in], id, in.running)
		invariant.Check(in.work == work[in], "the batches on %v take %v, %v counted", id, work[in], in.work)
		invariant.Check(in.credits >= 0 || in.away(), "instance %v has %d credits", id, in.credits)
	}
	for _, b := range c.callers {
		invariant.Check(c.batches[b.ID] == b && b.calls.n > 0, "batch %v has %d calls under way, and is counted among those that have", b.ID, b.calls.n)
	}
	n := c.counts
	invariant.Check(waiting == c.waiting.requests, "%d items wait, %d counted", waiting, c.waiting.requests)
	invariant.Check(waiting+running == len(c.items), "%d wait, %d run, %d known", waiting, running, len(c.items))
	invariant.Check(n.Submitted == n.Refused+n.Failed+n.HandedOff+n.Completed+uint64(len(c.items)), "%+v does not add up with %d in flight", n, len(c.items))
}
