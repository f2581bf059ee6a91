package decisionlog

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/scheduler/core"
)

// errMalformed says that no encoder can have written a step.
var errMalformed = errors.New("a step is malformed")

// decoder reads the steps of blocks. After the first error, which it retains, everything reads as zero.
type decoder struct {
	last
	b       []byte
	err     error
	strings []string
	models  []infer.ModelRef
	configs []*modelconfig.Config // by model; nil is unknown
}

func (d *decoder) fail() {
	if d.err == nil {
		d.err = errMalformed
	}
	d.b = nil
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.fail()
		return 0
	}
	b := d.b[0]
	d.b = d.b[1:]
	return b
}

func (d *decoder) uint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) int() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

// count reads how many elements follow, each of at least one byte.
func (d *decoder) count() int {
	n := d.uint()
	if n > uint64(len(d.b)) {
		d.fail()
		return 0
	}
	return int(n)
}

func (d *decoder) bytes() []byte {
	n := d.count()
	b := d.b[:n]
	d.b = d.b[n:]
	return b
}

func (d *decoder) time() mono.Time { return d.now + mono.Time(d.int()) }

func (d *decoder) delta(before *uint64) uint64 {
	*before += uint64(d.int())
	return *before
}

func (d *decoder) bool() bool { return d.byte() != 0 }

func (d *decoder) string() string {
	switch n := d.uint(); {
	case n < uint64(len(d.strings)):
		return d.strings[n]
	case n > uint64(len(d.strings)) || d.err != nil:
		d.fail()
		return ""
	}
	s := string(d.bytes())
	d.strings = append(d.strings, s)
	return s
}

func (d *decoder) model() (number int, ref infer.ModelRef) {
	switch n := d.uint(); {
	case n < uint64(len(d.models)):
		return int(n), d.models[n]
	case n > uint64(len(d.models)) || d.err != nil:
		d.fail()
		return -1, infer.ModelRef{}
	}
	ref = infer.ModelRef{Namespace: d.string(), Name: d.string(), Version: d.int(), Generation: d.uint()}
	d.models, d.configs = append(d.models, ref), append(d.configs, nil)
	return len(d.models) - 1, ref
}

func (d *decoder) request() infer.RequestID {
	return infer.RequestID{Origin: d.delta(&d.origin), Number: d.delta(&d.number)}
}

func (d *decoder) unit() infer.Unit {
	u := infer.Unit{Request: d.request()}
	attempt := d.uint()
	u.Attempt = uint32(attempt >> 1)
	if attempt&1 != 0 {
		u.Step, u.Iteration = uint32(d.uint()), uint32(d.uint())
	}
	return u
}

func (d *decoder) instance() infer.InstanceID {
	return infer.InstanceID{Worker: d.delta(&d.worker), Slot: uint32(d.uint())}
}

func (d *decoder) batch() infer.BatchID {
	return infer.BatchID{Epoch: d.delta(&d.epoch), Number: d.delta(&d.last.batch)}
}

func (d *decoder) parent() infer.Parent {
	return infer.Parent{Batch: d.batch(), Unit: d.unit(), Alone: d.bool()}
}

func (d *decoder) work() infer.Work {
	u := d.unit()
	return infer.Work{Request: u.Request, Step: u.Step, Iteration: u.Iteration, Attempt: u.Attempt, Epoch: d.delta(&d.epoch)}
}

// step reads one step into s.
func (d *decoder) step(s *Step) error {
	*s = Step{Decisions: s.Decisions[:0]}
	d.now += mono.Time(d.int())
	s.Now = d.now
	d.event(&s.Event)
	for range d.count() {
		s.Decisions = append(s.Decisions, d.decision())
	}
	return d.err
}

func (d *decoder) event(ev *core.Event) {
	kind := d.byte()
	ev.Kind = core.EventKind(kind &^ heldSequences)
	switch ev.Kind {
	case core.Submit:
		ev.Item = d.item()
	case core.Cancel:
		ev.Unit = d.unit()
	case core.UnitDone:
		ev.Done = d.unitDone()
	case core.Configure:
		n, ref := d.model()
		config, err := parseConfig(ref.Name, d.bytes())
		if d.err == nil {
			d.err = err
		}
		if d.err == nil {
			d.configs[n] = config
			ev.Model = &core.Model{Ref: ref, Config: config}
		}
	case core.Remove:
		_, ref := d.model()
		ev.Model = &core.Model{Ref: ref}
	case core.Learned:
		_, ref := d.model()
		ev.Model, ev.Costs = &core.Model{Ref: ref}, d.costs()
	case core.Granted:
		ev.Grant = d.grant()
	case core.Retire:
		ev.Instance = d.instance()
	case core.InstanceFree:
		ev.Ended = d.instanceFree()
	case core.MemoryReported:
		ev.Instance = d.instance()
		d.int()
		ev.Memory = d.int()
	case core.BatchReturned:
		ev.Batches = d.returned()
		if ev.Reason = errs.Reason(d.string()); len(ev.Batches) == 0 {
			d.fail()
		}
	case core.BecomeLeader:
		ev.Epoch = d.delta(&d.epoch)
		for range d.count() {
			ev.History.Workers = append(ev.History.Workers, d.delta(&d.worker))
		}
		ev.History.IncompleteBefore, ev.Until = d.uint(), d.time()
	case core.LeaseHeld, core.LeaseEnded:
		ev.Key, ev.Revision, ev.Instance, ev.Released = d.string(), d.uint(), d.instance(), d.bool()
	case core.WorkerConnected:
		ev.Instance = d.instance()
		ev.Held = d.held(kind&heldSequences != 0)
	case core.WorkerDisconnected:
		ev.Instance, ev.Batches, ev.Until = d.instance(), d.returned(), d.time()
	case core.WorkerLost:
		ev.Instance, ev.Released = d.instance(), d.bool()
	case core.GatewayDisconnected:
		ev.Origin = d.delta(&d.origin)
	case core.Recorded:
		ev.Version = d.uint()
	case core.StepDown, core.Tick:
	default:
		d.fail()
	}
}

// submitted is an item and its request in one allocation.
type submitted struct {
	item    core.Item
	request infer.Request
}

func (d *decoder) item() *core.Item {
	s := new(submitted)
	it, r := &s.item, &s.request
	flags := d.uint()
	r.Work.Request = d.request()
	_, r.Model = d.model()
	it.BatchSize, it.Bytes = int64(d.uint()), int64(d.uint())
	it.Enqueued = d.time()
	if flags&hasDeadline != 0 {
		it.Deadline = d.time()
	}
	if flags&hasPriority != 0 {
		r.Priority = d.uint()
	}
	if flags&hasTimeout != 0 {
		r.Timeout = time.Duration(d.int())
	}
	r.Work.Attempt = 1
	if flags&resubmitted != 0 {
		r.Work.Attempt, r.Work.Epoch = uint32(d.uint()), d.uint()
	}
	if flags&hasStep != 0 {
		r.Work.Step, r.Work.Iteration = uint32(d.uint()), uint32(d.uint())
	}
	if flags&hasSequence != 0 {
		r.Sequence = d.sequence()
	}
	if flags&hasParent != 0 {
		r.Parent = d.parent()
	}
	if flags&hasShare != 0 {
		r.Tenant = d.string()
		r.Share = infer.Share{Band: uint32(d.uint()), Minimum: uint32(d.uint()), Weight: uint32(d.uint())}
	}
	if flags&hasInputs != 0 {
		for range d.count() {
			in := infer.Tensor{Name: d.string()}
			for range d.count() {
				in.Shape = append(in.Shape, d.int())
			}
			r.Inputs = append(r.Inputs, in)
		}
	}
	r.BatchSize, r.Deadline = it.BatchSize, it.Deadline
	it.Request, it.Work, it.Model = r, r.Work, r.Model
	return it
}

func (d *decoder) sequence() infer.Sequence {
	flags := d.byte()
	return infer.Sequence{Start: flags&starts != 0, End: flags&ends != 0, ID: d.uint(), Key: d.string()}
}

func (d *decoder) grant() *infer.Grant {
	g := &infer.Grant{Instance: d.instance()}
	_, g.Model = d.model()
	g.Name, g.Device, g.Credits, g.Pipelined = d.string(), d.string(), int(d.int()), int(d.int())
	g.Warmed = d.costs()
	return g
}

func (d *decoder) unitDone() *infer.UnitDone {
	done := &infer.UnitDone{Batch: d.batch(), Instance: d.instance(), Work: d.work()}
	done.Outcome, done.At = infer.Outcome(d.byte()), d.time()
	if d.bool() {
		done.FirstResponse = d.time()
	}
	return done
}

func (d *decoder) instanceFree() *infer.InstanceFree {
	c, flags := &infer.InstanceFree{Executions: 1, Credits: 1}, d.byte()
	c.Batch, c.Instance = d.batch(), d.instance()
	if flags&succeeded != 0 {
		if n := d.uint(); n <= maxUnits {
			c.Outcomes = make([]infer.Outcome, n)
		} else {
			d.fail()
		}
	} else {
		for _, o := range d.bytes() {
			c.Outcomes = append(c.Outcomes, infer.Outcome(o))
		}
	}
	if flags&ranOnce == 0 {
		c.Executions = int(d.int())
	}
	if flags&oneCredit == 0 {
		c.Credits = int(d.int())
	}
	c.BatchSize = d.int()
	t := &c.Timing
	t.Start = d.time()
	t.InputDone = t.Start + mono.Time(d.int())
	t.InferDone = t.InputDone + mono.Time(d.int())
	t.Done = t.InferDone + mono.Time(d.int())
	for _, end := range d.bytes() {
		c.Ends = append(c.Ends, infer.UnitEnd(end))
	}
	return c
}

// maxUnits limits what a count without content may ask for.
const maxUnits = 1 << 20

func (d *decoder) returned() (batches []*infer.Batch) {
	for range d.count() {
		b := &infer.Batch{ID: d.batch(), Instance: d.instance()}
		for range d.count() {
			r := &infer.Request{Work: d.work()}
			_, r.Model = d.model()
			b.Requests = append(b.Requests, r)
		}
		batches = append(batches, b)
	}
	return batches
}

func (d *decoder) held(sequences bool) *infer.Held {
	h := &infer.Held{Epoch: d.uint()}
	for range d.count() {
		r := infer.Running{Batch: d.batch(), Instance: d.instance(), InstanceFree: d.bool()}
		for range d.count() {
			r.Units, r.BatchSizes = append(r.Units, d.work()), append(r.BatchSizes, int64(d.uint()))
		}
		h.Running = append(h.Running, r)
	}
	for range d.count() {
		b := infer.Started{Origin: d.delta(&d.origin), Forgotten: d.uint(), First: d.uint()}
		b.Bits = append(b.Bits, d.bytes()...)
		h.Started = append(h.Started, b)
	}
	if !sequences {
		return h
	}
	for range d.count() {
		var s infer.HeldSequence
		_, s.Model = d.model()
		s.Sequence, s.Instance, s.BatchSlot = d.sequence(), d.instance(), uint32(d.uint())
		if d.uint() != 0 {
			s.Request = d.work()
		}
		s.Idle = time.Duration(d.int())
		h.Sequences = append(h.Sequences, s)
	}
	return h
}

func (d *decoder) decision() Decision {
	kind, flags := core.DecisionKind(d.byte()), d.byte()
	x := Decision{Decision: core.Decision{Kind: kind}}
	if kind < core.Dispatch || kind > core.Again {
		d.fail()
	}
	if flags&hasReason != 0 {
		x.Reason = errs.Reason(d.string())
	}
	if flags&hasUnit != 0 {
		x.Unit = d.unit()
	}
	if flags&hasBatch != 0 {
		x.Batch = d.batch()
	}
	if flags&hasInstance != 0 {
		x.Instance = d.instance()
	}
	if flags&hasA != 0 {
		x.A = d.int()
		if kind == core.Wait {
			x.A += int64(d.now)
		}
	}
	if flags&hasB != 0 {
		x.B = d.int()
		if kind == core.Dispatch {
			x.B += int64(d.now)
		}
	}
	if flags&hasMembers != 0 {
		for range d.count() {
			x.Units = append(x.Units, d.unit())
		}
	}
	if flags&hasSlots != 0 {
		for range x.Units {
			x.Slots = append(x.Slots, infer.Slot{Index: uint32(d.uint()), Sequence: d.sequence()})
		}
	}
	return x
}
