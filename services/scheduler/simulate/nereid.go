package simulate

import (
	"slices"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/scheduler/core"
)

// nereid is the scheduler's core as a policy.
type nereid struct {
	*engine
	core     *core.Core
	recorder Recorder // nil if nobody keeps what happens
	event    core.Event
	ended    infer.InstanceFree
	outcomes []infer.Outcome
	spare    []*core.Item
	decided  int
}

func newNereid(e *engine, r Recorder) *nereid {
	return &nereid{engine: e, core: core.New(e.Limits), recorder: r}
}

func (n *nereid) change(e *core.Event) {
	if e.Kind == core.BecomeLeader {
		e = &core.Event{Kind: core.BecomeLeader, Epoch: e.Epoch, Until: e.Until}
	}
	n.step(e)
}

func (n *nereid) arrive(i int32) {
	a := &n.Arrivals[i]
	it := n.newItem()
	r := it.Request
	*r = infer.Request{
		Work: infer.Work{Request: infer.RequestID{Origin: a.Origin, Number: uint64(i) + 1}, Attempt: 1}, Model: n.Models[a.Model].Ref,
		BatchSize: a.BatchSize, Priority: a.Priority, Timeout: a.Timeout, Deadline: a.Deadline, Inputs: a.Inputs, Sequence: a.Sequence,
		Tenant: a.Tenant, Share: a.Share,
	}
	it.Work, it.Model, it.BatchSize, it.Bytes, it.Deadline, it.Enqueued = r.Work, r.Model, a.BatchSize, a.Bytes, a.Deadline, n.now
	n.event = core.Event{Kind: core.Submit, Item: it}
	n.step(&n.event)
}

func (n *nereid) newItem() *core.Item {
	last := len(n.spare) - 1
	if last < 0 {
		return &core.Item{Request: new(infer.Request)}
	}
	it := n.spare[last]
	n.spare = n.spare[:last]
	r := it.Request
	it.Reset()
	it.Request = r
	return it
}

func (n *nereid) cancel(i int32) {
	n.event = core.Event{Kind: core.Cancel, Unit: infer.Unit{Request: infer.RequestID{Origin: n.Arrivals[i].Origin, Number: uint64(i) + 1}}}
	n.step(&n.event)
}

func (n *nereid) free(b *batch) {
	n.outcomes = slices.Grow(n.outcomes[:0], len(b.units))[:len(b.units)] // all succeeded
	n.ended = infer.InstanceFree{Outcomes: n.outcomes, Batch: b.id, Instance: b.instance.id, BatchSize: b.size, Credits: 1}
	if b.ran {
		end := b.start.Add(b.cost)
		n.ended.Executions = 1
		n.ended.Timing = infer.Timing{Start: b.start, InputDone: b.start, InferDone: end, Done: end}
	}
	n.event = core.Event{Kind: core.InstanceFree, Ended: &n.ended}
	n.step(&n.event)
}

func (n *nereid) tick() {
	n.event = core.Event{Kind: core.Tick}
	n.step(&n.event)
}

func (n *nereid) next() mono.Time { return n.core.NextWake() }
func (n *nereid) idle() bool      { return n.core.InFlight() == 0 && n.core.Settled() }
func (n *nereid) decisions() int  { return n.decided }

// step has the core decide, and does that.
func (n *nereid) step(e *core.Event) {
	record := int64(0)
	if n.recorder != nil {
		n.recorder.Event(n.now, e)
	}
	decisions := n.core.Step(n.now, e)
	if n.recorder != nil {
		n.recorder.Decided(decisions)
	}
	for i := range decisions {
		switch d := &decisions[i]; d.Kind {
		case core.Dispatch:
			n.start(d)
		case core.Refuse:
			n.endItem(d.Item(), refused, d.Reason)
		case core.Fail, core.HandOff:
			n.endItem(d.Item(), failed, d.Reason)
		case core.Complete:
			n.completed(d)
		case core.Record: // a store would hold it now
			record = d.A
		default: // an execution is not stopped, and nothing else has an effect
		}
	}
	n.decided += len(decisions)
	if record != 0 {
		n.step(&core.Event{Kind: core.Recorded, Version: uint64(record)})
	}
}

func (n *nereid) start(d *core.Decision) {
	b := n.newBatch()
	b.id, b.instance, b.latest = d.Batch, n.instances[d.Instance], mono.Time(d.B)
	for _, it := range d.Members().Items {
		b.units = append(b.units, index(it))
	}
	n.dispatch(b)
}

func index(it *core.Item) int32 { return int32(it.Work.Request.Number - 1) }

// completed takes the items back whose results are known.
func (n *nereid) completed(d *core.Decision) {
	if it := d.Item(); it != nil {
		n.spare = append(n.spare, it)
		return
	}
	for _, it := range d.Members().Items {
		if it != nil {
			n.spare = append(n.spare, it)
		}
	}
}

func (n *nereid) endItem(it *core.Item, o outcome, reason errs.Reason) {
	n.end(index(it), o, reason)
	n.spare = append(n.spare, it)
}
