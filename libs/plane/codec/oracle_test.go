package codec

import (
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// What the package does by hand, written down with the generated types.

func descriptorMessage(r *infer.Request, now mono.Time) *nereidv1.Descriptor {
	d := &nereidv1.Descriptor{
		Work: work(r.Work), Id: r.ID, BatchSize: r.BatchSize, Model: model(r.Model),
		Priority: r.Priority, TimeoutUs: uint64(r.Timeout / time.Microsecond),
		Tenant: r.Tenant, CostClass: r.CostClass, Trace: r.Trace, Parameters: parameters(r.Parameters),
	}
	if left, ok := r.Deadline.Left(now); ok {
		d.BudgetNs = uint64(max(left, 1))
	}
	if r.Sequence != (infer.Sequence{}) {
		d.Sequence = sequence(r.Sequence)
	}
	if r.Parent != (infer.Parent{}) {
		d.Parent = parent(r.Parent)
	}
	d.KeepOutputs = r.KeepOutputs
	if r.Share != (infer.Share{}) {
		d.Share = &nereidv1.Share{Band: r.Share.Band, Minimum: r.Share.Minimum, Weight: r.Share.Weight}
	}
	for _, o := range r.Outputs {
		d.Outputs = append(d.Outputs, o.Name)
	}
	d.Inputs, _ = tensors(r.Inputs)
	return d
}

func requestOf(d *nereidv1.Descriptor, now mono.Time) *infer.Request {
	r := &infer.Request{
		Work: workOf(d.GetWork()), ID: d.GetId(), BatchSize: d.GetBatchSize(), Model: modelOf(d.GetModel()),
		Inputs: tensorsOf(d.GetInputs()), Parameters: parametersOf(d.GetParameters()), Sequence: sequenceOf(d.GetSequence()),
		Priority: d.GetPriority(), Timeout: time.Duration(min(d.GetTimeoutUs(), 9223372036854775)) * time.Microsecond,
		Tenant: d.GetTenant(), CostClass: d.GetCostClass(), Trace: d.GetTrace(), Received: now, KeepOutputs: d.GetKeepOutputs(),
	}
	if p := d.GetParent(); p != nil {
		r.Parent = parentOf(p)
	}
	if v := d.GetShare(); v != nil {
		r.Share = infer.Share{Band: v.GetBand(), Minimum: v.GetMinimum(), Weight: v.GetWeight()}
	}
	if d.GetBudgetNs() > 0 {
		r.Deadline = after(now, d.GetBudgetNs())
	}
	for _, name := range d.GetOutputs() {
		r.Outputs = append(r.Outputs, infer.Output{Name: name})
	}
	return r
}

func parent(p infer.Parent) *nereidv1.Parent {
	u := p.Unit
	return &nereidv1.Parent{
		Unit:  work(infer.Work{Request: u.Request, Step: u.Step, Iteration: u.Iteration, Attempt: u.Attempt}),
		Batch: p.Batch.Number, Epoch: p.Batch.Epoch, Alone: p.Alone,
	}
}

func parentOf(p *nereidv1.Parent) infer.Parent {
	of := workOf(p.GetUnit())
	return infer.Parent{Batch: infer.BatchID{Epoch: p.GetEpoch(), Number: p.GetBatch()}, Unit: of.Unit(), Alone: p.GetAlone()}
}

func batchMessage(b *infer.Batch, now mono.Time) *nereidv1.Batch {
	m := &nereidv1.Batch{Batch: b.ID.Number, Epoch: b.ID.Epoch, Instance: Instance(b.Instance)}
	if left, ok := b.LatestStart.Left(now); ok {
		m.LatestStartNs = uint64(max(left, 1))
	}
	for i, r := range b.Requests {
		m.Requests = append(m.Requests, &nereidv1.BatchRequest{Descriptor_: descriptorMessage(r, now), QueuedNs: nanoseconds(now.Sub(b.Enqueued[i]))})
		if len(b.Slots) > 0 {
			m.Requests[i].Slot = &nereidv1.Slot{Index: b.Slots[i].Index, Sequence: sequence(b.Slots[i].Sequence)}
		}
	}
	return m
}

func batchOf(m *nereidv1.Batch, now mono.Time) *infer.Batch {
	b := &infer.Batch{ID: infer.BatchID{Epoch: m.GetEpoch(), Number: m.GetBatch()}, Instance: InstanceOf(m.GetInstance())}
	if left := m.GetLatestStartNs(); left > 0 {
		b.LatestStart = after(now, left)
	}
	for _, r := range m.GetRequests() {
		b.Requests = append(b.Requests, requestOf(r.GetDescriptor_(), now))
		b.Enqueued = append(b.Enqueued, before(now, r.GetQueuedNs()))
		if s := r.GetSlot(); s != nil {
			b.Slots = append(b.Slots, infer.Slot{Index: s.GetIndex(), Sequence: sequenceOf(s.GetSequence())})
		}
	}
	if len(b.Slots) != len(b.Requests) { // all have one, or none
		b.Slots = nil
	}
	return b
}

func instanceFreeMessage(f *infer.InstanceFree) *nereidv1.InstanceFree {
	m := &nereidv1.InstanceFree{
		Batch: f.Batch.Number, Epoch: f.Batch.Epoch, Instance: Instance(f.Instance), Executions: uint32(f.Executions), BatchSize: f.BatchSize, Credits: uint32(f.Credits),
		Timing: &nereidv1.Timing{InputNs: nanoseconds(f.Timing.Input()), InferNs: nanoseconds(f.Timing.Infer()), OutputNs: nanoseconds(f.Timing.Output())},
	}
	for _, o := range f.Outcomes {
		m.Outcomes = append(m.Outcomes, Outcome(o))
	}
	for _, t := range f.FirstResponses {
		m.FirstResponseNs = append(m.FirstResponseNs, sinceFirst(f.Timing.Done, t))
	}
	for _, e := range f.Ends {
		m.Ends = append(m.Ends, nereidv1.UnitEnd(e))
	}
	for _, u := range f.Responses {
		m.Responses = append(m.Responses, unitResponsesMessage(u))
	}
	return m
}

func unitResponsesMessage(u infer.UnitResponses) *nereidv1.UnitResponses {
	m := &nereidv1.UnitResponses{Empty: u.Empty}
	for _, d := range u.Times {
		m.TimesNs = append(m.TimesNs, nanoseconds(d))
	}
	return m
}

func unitResponsesOf(m *nereidv1.UnitResponses) infer.UnitResponses {
	u := infer.UnitResponses{Empty: m.GetEmpty()}
	for _, ns := range m.GetTimesNs()[:min(len(m.GetTimesNs()), infer.MaxResponseTimes)] {
		u.Times = append(u.Times, duration(ns))
	}
	return u
}

func sinceFirst(end, t mono.Time) uint64 {
	if t == 0 {
		return 0
	}
	return max(nanoseconds(end.Sub(t)), 1)
}

func firstOf(now mono.Time, ago uint64) mono.Time {
	if ago == 0 {
		return 0
	}
	return before(now, ago)
}

func instanceFreeOf(m *nereidv1.InstanceFree, now mono.Time) *infer.InstanceFree {
	f := &infer.InstanceFree{
		Batch: infer.BatchID{Epoch: m.GetEpoch(), Number: m.GetBatch()}, Instance: InstanceOf(m.GetInstance()), Executions: int(m.GetExecutions()),
		BatchSize: m.GetBatchSize(), Credits: int(m.GetCredits()),
	}
	t := m.GetTiming()
	f.Timing = timing([5]uint64{0, 0, t.GetInputNs(), t.GetInferNs(), t.GetOutputNs()}, now)
	for _, o := range m.GetOutcomes() {
		f.Outcomes = append(f.Outcomes, OutcomeOf(o))
	}
	for _, ago := range m.GetFirstResponseNs() {
		f.FirstResponses = append(f.FirstResponses, firstOf(now, ago))
	}
	for _, e := range m.GetEnds() {
		end := infer.UnitEnded // what is unknown, too
		if nereidv1.UnitEnd_name[int32(e)] != "" {
			end = infer.UnitEnd(e)
		}
		f.Ends = append(f.Ends, end)
	}
	for _, u := range m.GetResponses() {
		f.Responses = append(f.Responses, unitResponsesOf(u))
	}
	return f
}

func unitDoneMessage(d *infer.UnitDone) *nereidv1.UnitDone {
	m := &nereidv1.UnitDone{
		Work: work(d.Work), Batch: d.Batch.Number, Epoch: d.Batch.Epoch, Instance: Instance(d.Instance), Outcome: Outcome(d.Outcome),
		FirstResponseNs: sinceFirst(d.At, d.FirstResponse),
	}
	if len(d.Responses.Times) > 0 {
		m.Responses = unitResponsesMessage(d.Responses)
	}
	return m
}

func unitDoneOf(m *nereidv1.UnitDone, now mono.Time) infer.UnitDone {
	return infer.UnitDone{
		Work: workOf(m.GetWork()), Batch: infer.BatchID{Epoch: m.GetEpoch(), Number: m.GetBatch()}, Instance: InstanceOf(m.GetInstance()),
		Outcome: OutcomeOf(m.GetOutcome()), FirstResponse: firstOf(now, m.GetFirstResponseNs()), At: now,
		Responses: unitResponsesOf(m.GetResponses()),
	}
}

// responseMessage is the message of a response, whose tensors it shares.
func responseMessage(r *infer.Response) (*nereidv1.Response, error) {
	outputs, err := tensors(r.Outputs)
	var execution *nereidv1.Execution
	if x := r.Execution; x != (infer.Execution{}) {
		execution = &nereidv1.Execution{
			Batch: x.Batch.Number, Epoch: x.Batch.Epoch, Worker: x.Instance.Worker, Slot: x.Instance.Slot, BatchSize: x.BatchSize,
			WaitedNs: nanoseconds(x.Waited), InputNs: nanoseconds(x.Input), RanNs: nanoseconds(x.Ran), CostNs: nanoseconds(x.Cost), OutputNs: nanoseconds(x.Output),
		}
	}
	return &nereidv1.Response{
		Execution: execution,
		Work:      work(r.Work), Index: r.Index, Final: r.Final, Outputs: outputs, Parameters: parameters(r.Parameters),
		Error: Error(r.Err), Immediate: r.Immediate, Returned: r.Returned != nil, Awaited: r.Awaited, Kept: r.Kept,
	}, err
}

// responseOf is the response that a message brings, and whether it gives the
// request back.
func responseOf(m *nereidv1.Response) (r *infer.Response, returned bool) {
	x := m.GetExecution()
	return &infer.Response{
		Execution: infer.Execution{
			Batch: infer.BatchID{Epoch: x.GetEpoch(), Number: x.GetBatch()}, Instance: infer.InstanceID{Worker: x.GetWorker(), Slot: x.GetSlot()},
			BatchSize: int64(min(uint64(x.GetBatchSize()), 1<<63-1)), Waited: duration(x.GetWaitedNs()), Input: duration(x.GetInputNs()),
			Ran: duration(x.GetRanNs()), Cost: duration(x.GetCostNs()), Output: duration(x.GetOutputNs()),
		},
		Work: workOf(m.GetWork()), Index: m.GetIndex(), Final: m.GetFinal(), Outputs: tensorsOf(m.GetOutputs()),
		Parameters: parametersOf(m.GetParameters()), Err: ErrorOf(m.GetError()), Immediate: m.GetImmediate(),
		Awaited: m.GetAwaited(), Kept: m.GetKept(),
	}, m.GetReturned()
}

func parameters(list []infer.Parameter) []*nereidv1.Parameter {
	var out []*nereidv1.Parameter
	for _, p := range list {
		m := &nereidv1.Parameter{Key: p.Key}
		switch v := p.Value.(type) {
		case bool:
			m.Value = &nereidv1.Parameter_BoolValue{BoolValue: v}
		case int64:
			m.Value = &nereidv1.Parameter_Int64Value{Int64Value: v}
		case float64:
			m.Value = &nereidv1.Parameter_DoubleValue{DoubleValue: v}
		case string:
			m.Value = &nereidv1.Parameter_StringValue{StringValue: v}
		}
		out = append(out, m)
	}
	return out
}

func parametersOf(list []*nereidv1.Parameter) []infer.Parameter {
	var out []infer.Parameter
	for _, m := range list {
		p := infer.Parameter{Key: m.GetKey()}
		switch v := m.GetValue().(type) {
		case *nereidv1.Parameter_BoolValue:
			p.Value = v.BoolValue
		case *nereidv1.Parameter_Int64Value:
			p.Value = v.Int64Value
		case *nereidv1.Parameter_DoubleValue:
			p.Value = v.DoubleValue
		case *nereidv1.Parameter_StringValue:
			p.Value = v.StringValue
		}
		out = append(out, p)
	}
	return out
}

func tensors(list []infer.Tensor) ([]*nereidv1.Tensor, error) {
	var out []*nereidv1.Tensor
	for i := range list {
		t := &list[i]
		ref, err := tensorRef(t.Data)
		if err != nil {
			return nil, err
		}
		out = append(out, &nereidv1.Tensor{Name: t.Name, Datatype: nereidv1.Datatype(t.Datatype), Shape: t.Shape, Ref: ref})
	}
	return out, nil
}

func tensorRef(r tensor.Ref) (*nereidv1.TensorRef, error) {
	switch r.Place {
	case tensor.Arena:
		slot := &nereidv1.ArenaSlot{Region: r.Region, Slot: r.Slot, Generation: r.Generation, Offset: uint64(r.Offset), Length: uint64(r.Length)}
		return &nereidv1.TensorRef{Place: &nereidv1.TensorRef_Arena{Arena: slot}}, nil
	case tensor.Remote:
		return &nereidv1.TensorRef{Place: &nereidv1.TensorRef_Remote{Remote: slotMessage(r)}}, nil
	}
	data, err := r.Bytes()
	if err != nil || data == nil {
		return nil, err
	}
	return &nereidv1.TensorRef{Place: &nereidv1.TensorRef_Inline{Inline: data}}, nil
}

func tensorsOf(list []*nereidv1.Tensor) []infer.Tensor {
	var out []infer.Tensor
	for _, m := range list {
		t := infer.Tensor{Name: m.GetName(), Datatype: tensor.Datatype(m.GetDatatype()), Shape: m.GetShape()}
		switch p := m.GetRef().GetPlace().(type) {
		case *nereidv1.TensorRef_Inline:
			t.Data = tensor.InHeap(p.Inline)
		case *nereidv1.TensorRef_Arena:
			a := p.Arena
			t.Data = tensor.Ref{
				Place: tensor.Arena, Region: a.GetRegion(), Slot: a.GetSlot(), Generation: a.GetGeneration(), Offset: int64(a.GetOffset()), Length: int64(a.GetLength()),
			}
		case *nereidv1.TensorRef_Remote:
			t.Data = slotOf(p.Remote)
		}
		out = append(out, t)
	}
	return out
}

// slotMessage is the message of a reference of place Remote.
func slotMessage(r tensor.Ref) *nereidv1.RemoteSlot {
	return &nereidv1.RemoteSlot{
		Holder: r.Holder, Region: r.Region, Slot: r.Slot, Generation: r.Generation, Offset: uint64(r.Offset), Length: uint64(r.Length),
	}
}

// slotOf is the reference that a message names.
func slotOf(m *nereidv1.RemoteSlot) tensor.Ref {
	return tensor.Ref{
		Place: tensor.Remote, Holder: m.GetHolder(), Region: m.GetRegion(), Slot: m.GetSlot(), Generation: m.GetGeneration(),
		Offset: int64(m.GetOffset()), Length: int64(m.GetLength()),
	}
}
