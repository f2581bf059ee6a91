package decisionlog

import (
	"encoding/binary"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/scheduler/core"
)

// last holds the values that the next deltas are relative to.
type last struct {
	now            mono.Time
	origin, number uint64
	epoch, batch   uint64
	worker         uint64
}

// Flags of a submitted item: which fields follow.
const (
	hasDeadline = 1 << iota
	hasPriority
	hasTimeout
	hasInputs
	resubmitted // attempt and epoch
	hasStep     // step and iteration
	hasSequence
	hasParent
	hasShare // and the tenant
)

// Flags of a request in a sequence.
const (
	starts = 1 << iota
	ends
)

// heldSequences in an event's kind says that sequences follow the worker's report.
const heldSequences = 0x80

// Flags of a completion.
const (
	succeeded  = 1 << iota // all outcomes are
	ranOnce                // one execution
	oneCredit              // is returned
	completion             // there is one
)

// Flags of a decision: which fields follow.
const (
	hasReason = 1 << iota
	hasUnit
	hasBatch
	hasInstance
	hasA
	hasB
	hasMembers
	hasSlots
)

// encoder appends steps to buffers.
type encoder struct {
	last
	b       []byte
	strings map[string]uint64
	models  map[infer.ModelRef]int
	plain   []bool // by model: whether the shapes of its inputs do not matter
}

func newEncoder() *encoder {
	return &encoder{strings: make(map[string]uint64), models: make(map[infer.ModelRef]int)}
}

func (e *encoder) byte(b byte)      { e.b = append(e.b, b) }
func (e *encoder) uint(n uint64)    { e.b = binary.AppendUvarint(e.b, n) }
func (e *encoder) int(n int64)      { e.b = binary.AppendVarint(e.b, n) }
func (e *encoder) time(t mono.Time) { e.int(int64(t - e.now)) }

// delta writes the difference between n and the last value of its kind.
func (e *encoder) delta(before *uint64, n uint64) {
	e.int(int64(n - *before))
	*before = n
}

func (e *encoder) bool(b bool) {
	if b {
		e.byte(1)
	} else {
		e.byte(0)
	}
}

func (e *encoder) string(s string) {
	n, ok := e.strings[s]
	if ok {
		e.uint(n)
		return
	}
	n = uint64(len(e.strings))
	e.strings[s] = n
	e.uint(n)
	e.uint(uint64(len(s)))
	e.b = append(e.b, s...)
}

func (e *encoder) model(ref infer.ModelRef) (number int) {
	n, ok := e.models[ref]
	if !ok {
		n = len(e.models)
		e.models[ref] = n
		e.plain = append(e.plain, false)
	}
	e.uint(uint64(n))
	if !ok {
		e.string(ref.Namespace)
		e.string(ref.Name)
		e.int(ref.Version)
		e.uint(ref.Generation)
	}
	return n
}

func (e *encoder) request(id infer.RequestID) {
	e.delta(&e.origin, id.Origin)
	e.delta(&e.number, id.Number)
}

func (e *encoder) unit(u infer.Unit) {
	e.request(u.Request)
	if u.Step == 0 && u.Iteration == 0 {
		e.uint(uint64(u.Attempt) << 1)
		return
	}
	e.uint(uint64(u.Attempt)<<1 | 1)
	e.uint(uint64(u.Step))
	e.uint(uint64(u.Iteration))
}

func (e *encoder) instance(id infer.InstanceID) {
	e.delta(&e.worker, id.Worker)
	e.uint(uint64(id.Slot))
}

func (e *encoder) batch(id infer.BatchID) {
	e.delta(&e.epoch, id.Epoch)
	e.delta(&e.last.batch, id.Number)
}

func (e *encoder) parent(p *infer.Parent) {
	e.batch(p.Batch)
	e.unit(p.Unit)
	e.bool(p.Alone)
}

func (e *encoder) work(w infer.Work) {
	e.unit(w.Unit())
	e.delta(&e.epoch, w.Epoch)
}

// event starts a step.
func (e *encoder) event(now mono.Time, ev *core.Event) {
	e.int(int64(now - e.now))
	e.now = now
	kind := byte(ev.Kind)
	if ev.Held != nil && len(ev.Held.Sequences) > 0 {
		kind |= heldSequences
	}
	e.byte(kind)
	switch ev.Kind {
	case core.Submit:
		e.item(ev.Item)
	case core.Cancel:
		e.unit(ev.Unit)
	case core.UnitDone:
		e.unitDone(ev.Done)
	case core.Configure:
		e.plain[e.model(ev.Model.Ref)] = !shapesMatter(ev.Model.Config)
		e.config(ev.Model.Config)
	case core.Remove:
		e.model(ev.Model.Ref)
	case core.Learned:
		e.model(ev.Model.Ref)
		e.costs(ev.Costs)
	case core.Granted:
		e.grant(ev.Grant)
	case core.Retire:
		e.instance(ev.Instance)
	case core.InstanceFree:
		e.instanceFree(ev.Ended)
	case core.MemoryReported:
		e.instance(ev.Instance)
		e.int(-1) // reserved
		e.int(ev.Memory)
	case core.BatchReturned:
		e.returned(ev.Batches)
		e.string(string(ev.Reason))
	case core.BecomeLeader:
		e.delta(&e.epoch, ev.Epoch)
		e.uint(uint64(len(ev.History.Workers)))
		for _, id := range ev.History.Workers {
			e.delta(&e.worker, id)
		}
		e.uint(ev.History.IncompleteBefore)
		e.time(ev.Until)
	case core.LeaseHeld, core.LeaseEnded:
		e.string(ev.Key)
		e.uint(ev.Revision)
		e.instance(ev.Instance)
		e.bool(ev.Released)
	case core.WorkerConnected:
		e.instance(ev.Instance)
		e.held(ev.Held)
	case core.WorkerDisconnected:
		e.instance(ev.Instance)
		e.returned(ev.Batches)
		e.time(ev.Until)
	case core.WorkerLost:
		e.instance(ev.Instance)
		e.bool(ev.Released)
	case core.GatewayDisconnected:
		e.delta(&e.origin, ev.Origin)
	case core.Recorded:
		e.uint(ev.Version)
	case core.StepDown, core.Tick:
	}
}

func (e *encoder) item(it *core.Item) {
	flags := uint64(0)
	set := func(flag uint64, is bool) {
		if is {
			flags |= flag
		}
	}
	n, known := e.models[it.Model]
	set(hasDeadline, it.Deadline != 0)
	set(hasPriority, it.Request.Priority != 0)
	set(hasTimeout, it.Request.Timeout != 0)
	set(hasInputs, !known || !e.plain[n])
	set(resubmitted, it.Work.Attempt != 1 || it.Work.Epoch != 0)
	set(hasStep, it.Work.Step != 0 || it.Work.Iteration != 0)
	set(hasSequence, it.Request.Sequence != infer.Sequence{})
	set(hasParent, it.Request.Parent.Batch != infer.BatchID{})
	set(hasShare, it.Request.Share != infer.Share{} || it.Request.Tenant != "")
	e.uint(flags)
	e.request(it.Work.Request)
	e.model(it.Model)
	e.uint(uint64(it.BatchSize))
	e.uint(uint64(it.Bytes))
	e.time(it.Enqueued)
	if flags&hasDeadline != 0 {
		e.time(it.Deadline)
	}
	if flags&hasPriority != 0 {
		e.uint(it.Request.Priority)
	}
	if flags&hasTimeout != 0 {
		e.int(int64(it.Request.Timeout))
	}
	if flags&resubmitted != 0 {
		e.uint(uint64(it.Work.Attempt))
		e.uint(it.Work.Epoch)
	}
	if flags&hasStep != 0 {
		e.uint(uint64(it.Work.Step))
		e.uint(uint64(it.Work.Iteration))
	}
	if flags&hasSequence != 0 {
		e.sequence(it.Request.Sequence)
	}
	if flags&hasParent != 0 {
		e.parent(&it.Request.Parent)
	}
	if flags&hasShare != 0 {
		e.string(it.Request.Tenant)
		e.uint(uint64(it.Request.Share.Band))
		e.uint(uint64(it.Request.Share.Minimum))
		e.uint(uint64(it.Request.Share.Weight))
	}
	if flags&hasInputs == 0 {
		return
	}
	e.uint(uint64(len(it.Request.Inputs)))
	for i := range it.Request.Inputs {
		in := &it.Request.Inputs[i]
		e.string(in.Name)
		e.uint(uint64(len(in.Shape)))
		for _, d := range in.Shape {
			e.int(d)
		}
	}
}

func (e *encoder) sequence(s infer.Sequence) {
	flags := byte(0)
	if s.Start {
		flags |= starts
	}
	if s.End {
		flags |= ends
	}
	e.byte(flags)
	e.uint(s.ID)
	e.string(s.Key)
}

func (e *encoder) grant(g *infer.Grant) {
	e.instance(g.Instance)
	e.model(g.Model)
	e.string(g.Name)
	e.string(g.Device)
	e.int(int64(g.Credits))
	e.int(int64(g.Pipelined))
	e.costs(g.Warmed)
}

func (e *encoder) unitDone(d *infer.UnitDone) {
	e.batch(d.Batch)
	e.instance(d.Instance)
	e.work(d.Work)
	e.byte(byte(d.Outcome))
	e.time(d.At)
	e.bool(d.FirstResponse != 0)
	if d.FirstResponse != 0 {
		e.time(d.FirstResponse)
	}
}

func (e *encoder) instanceFree(c *infer.InstanceFree) {
	flags := byte(succeeded)
	for _, o := range c.Outcomes {
		if o != infer.Succeeded {
			flags &^= succeeded
		}
	}
	if c.Executions == 1 {
		flags |= ranOnce
	}
	if c.Credits == 1 {
		flags |= oneCredit
	}
	e.byte(flags)
	e.batch(c.Batch)
	e.instance(c.Instance)
	e.uint(uint64(len(c.Outcomes)))
	if flags&succeeded == 0 {
		for _, o := range c.Outcomes {
			e.byte(byte(o))
		}
	}
	if flags&ranOnce == 0 {
		e.int(int64(c.Executions))
	}
	if flags&oneCredit == 0 {
		e.int(int64(c.Credits))
	}
	e.int(c.BatchSize)
	e.time(c.Timing.Start)
	e.int(int64(c.Timing.InputDone - c.Timing.Start))
	e.int(int64(c.Timing.InferDone - c.Timing.InputDone))
	e.int(int64(c.Timing.Done - c.Timing.InferDone))
	e.uint(uint64(len(c.Ends)))
	for _, end := range c.Ends {
		e.byte(byte(end))
	}
}

func (e *encoder) returned(batches []*infer.Batch) {
	e.uint(uint64(len(batches)))
	for _, b := range batches {
		e.batch(b.ID)
		e.instance(b.Instance)
		e.uint(uint64(len(b.Requests)))
		for _, r := range b.Requests {
			e.work(r.Work)
			e.model(r.Model)
		}
	}
}

func (e *encoder) held(h *infer.Held) {
	e.uint(h.Epoch)
	e.uint(uint64(len(h.Running)))
	for i := range h.Running {
		r := &h.Running[i]
		e.batch(r.Batch)
		e.instance(r.Instance)
		e.bool(r.InstanceFree)
		e.uint(uint64(len(r.Units)))
		for j, w := range r.Units {
			e.work(w)
			e.uint(uint64(r.BatchSizeOf(j)))
		}
	}
	e.uint(uint64(len(h.Started)))
	for _, b := range h.Started {
		e.delta(&e.origin, b.Origin)
		e.uint(b.Forgotten)
		e.uint(b.First)
		e.uint(uint64(len(b.Bits)))
		e.b = append(e.b, b.Bits...)
	}
	if len(h.Sequences) == 0 {
		return
	}
	e.uint(uint64(len(h.Sequences)))
	for _, s := range h.Sequences {
		e.model(s.Model)
		e.sequence(s.Sequence)
		e.instance(s.Instance)
		e.uint(uint64(s.BatchSlot))
		if s.Request == (infer.Work{}) {
			e.uint(0)
		} else {
			e.uint(1)
			e.work(s.Request)
		}
		e.int(int64(s.Idle))
	}
}

// decisions ends a step.
func (e *encoder) decisions(list []core.Decision) {
	e.uint(uint64(len(list)))
	for i := range list {
		e.decision(&list[i])
	}
}

func (e *encoder) decision(d *core.Decision) {
	a, b := d.A, d.B
	switch { // times
	case d.Kind == core.Wait && a != 0:
		a -= int64(e.now)
	case d.Kind == core.Dispatch && b != 0:
		b -= int64(e.now)
	}
	flags := byte(0)
	set := func(flag byte, is bool) {
		if is {
			flags |= flag
		}
	}
	set(hasReason, d.Reason != "")
	set(hasUnit, d.Unit != infer.Unit{})
	set(hasBatch, d.Batch != infer.BatchID{})
	set(hasInstance, d.Instance != infer.InstanceID{})
	set(hasA, d.A != 0)
	set(hasB, d.B != 0)
	set(hasMembers, d.Kind == core.Dispatch)
	set(hasSlots, d.Kind == core.Dispatch && len(d.Members().Slots) > 0)
	e.byte(byte(d.Kind))
	e.byte(flags)
	if flags&hasReason != 0 {
		e.string(string(d.Reason))
	}
	if flags&hasUnit != 0 {
		e.unit(d.Unit)
	}
	if flags&hasBatch != 0 {
		e.batch(d.Batch)
	}
	if flags&hasInstance != 0 {
		e.instance(d.Instance)
	}
	if flags&hasA != 0 {
		e.int(a)
	}
	if flags&hasB != 0 {
		e.int(b)
	}
	if flags&hasMembers != 0 {
		items := d.Members().Items
		e.uint(uint64(len(items)))
		for _, it := range items { // all are there when a batch is dispatched
			e.unit(it.Unit())
		}
	}
	if flags&hasSlots != 0 {
		for _, s := range d.Members().Slots {
			e.uint(uint64(s.Index))
			e.sequence(s.Sequence)
		}
	}
}

// shapesMatter reports whether the core reads the shapes of requests' inputs.
func shapesMatter(c *modelconfig.Config) bool {
	for i := range c.Inputs {
		if c.Inputs[i].Optional || !c.Inputs[i].Dims.Fixed() {
			return true
		}
	}
	return false
}
