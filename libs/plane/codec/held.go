package codec

import (
	"math"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// Instance is the message of an instance's name.
func Instance(id infer.InstanceID) *nereidv1.InstanceId {
	return &nereidv1.InstanceId{Worker: id.Worker, Slot: id.Slot}
}

// InstanceOf is what a message says of an instance's name.
func InstanceOf(m *nereidv1.InstanceId) infer.InstanceID {
	return infer.InstanceID{Worker: m.GetWorker(), Slot: m.GetSlot()}
}

// GrantOf is the grant that a message brings.
func GrantOf(m *nereidv1.Grant) infer.Grant {
	return infer.Grant{
		Instance: InstanceOf(m.GetInstance()), Model: modelOf(m.GetModel()), Name: m.GetName(), Device: m.GetDevice(),
		Credits: int(m.GetCredits()) - int(m.GetWithdrawn()), Pipelined: int(m.GetPipelined()),
		Warmed: CostsOf(m.GetWarmed()),
	}
}

// CostsOf is what messages say of executions.
func CostsOf(list []*nereidv1.Cost) (costs []infer.Cost) {
	for _, m := range list {
		costs = append(costs, infer.Cost{
			Device: m.GetDevice(), Magnitude: uint8(min(m.GetMagnitude(), 64)), BatchSize: m.GetBatchSize(), Executions: m.GetExecutions(),
			Mean: time.Duration(min(m.GetMeanNs(), math.MaxInt64)), Deviation: m.GetDeviation(), //nolint:gosec // bounded
		})
	}
	return costs
}

// Costs are the messages of what executions took.
func Costs(costs []infer.Cost) (list []*nereidv1.Cost) {
	for _, c := range costs {
		list = append(list, &nereidv1.Cost{
			Device: c.Device, Magnitude: uint32(c.Magnitude), BatchSize: c.BatchSize, Executions: c.Executions,
			MeanNs: uint64(max(c.Mean, 0)), Deviation: c.Deviation,
		})
	}
	return list
}

// Grant is the message of a grant.
func Grant(g infer.Grant) *nereidv1.Grant {
	return &nereidv1.Grant{
		Instance: Instance(g.Instance), Model: model(g.Model), Name: g.Name, Device: g.Device,
		Credits: uint32(max(g.Credits, 0)), Withdrawn: uint32(max(-g.Credits, 0)), Pipelined: uint32(max(g.Pipelined, 0)),
		Warmed: Costs(g.Warmed),
	}
}

// Held writes what a worker holds into its hello.
func Held(h infer.Held, m *nereidv1.WorkerHello) {
	m.Epoch, m.BatchMemoryBytes = h.Epoch, uint64(max(h.Memory, 0))
	for _, r := range h.Running {
		running := &nereidv1.Running{
			Batch: r.Batch.Number, Epoch: r.Batch.Epoch, Instance: Instance(r.Instance), BatchSizes: r.BatchSizes, InstanceFree: r.InstanceFree,
		}
		for _, w := range r.Units {
			running.Units = append(running.Units, work(w))
		}
		m.Running = append(m.Running, running)
	}
	for _, b := range h.Started {
		m.Started = append(m.Started, &nereidv1.Started{Origin: b.Origin, Forgotten: b.Forgotten, First: b.First, Bits: b.Bits})
	}
	for _, s := range h.Sequences {
		held := &nereidv1.HeldSequence{
			Sequence: sequence(s.Sequence), Instance: Instance(s.Instance), BatchSlot: s.BatchSlot, IdleNs: nanoseconds(s.Idle),
			Model: model(s.Model),
		}
		if s.Request != (infer.Work{}) {
			held.Request = work(s.Request)
		}
		m.Sequences = append(m.Sequences, held)
	}
}

// HeldOf is what a worker's hello says that it holds.
func HeldOf(m *nereidv1.WorkerHello) infer.Held {
	h := infer.Held{Epoch: m.GetEpoch(), Memory: int64(min(m.GetBatchMemoryBytes(), math.MaxInt64))}
	for _, r := range m.GetRunning() {
		running := infer.Running{
			Batch: infer.BatchID{Epoch: r.GetEpoch(), Number: r.GetBatch()}, Instance: InstanceOf(r.GetInstance()), BatchSizes: r.GetBatchSizes(),
			InstanceFree: r.GetInstanceFree(),
		}
		for _, w := range r.GetUnits() {
			running.Units = append(running.Units, workOf(w))
		}
		h.Running = append(h.Running, running)
	}
	for _, b := range m.GetStarted() {
		h.Started = append(h.Started, infer.Started{Origin: b.GetOrigin(), Forgotten: b.GetForgotten(), First: b.GetFirst(), Bits: b.GetBits()})
	}
	for _, s := range m.GetSequences() {
		h.Sequences = append(h.Sequences, infer.HeldSequence{
			Sequence: sequenceOf(s.GetSequence()), Instance: InstanceOf(s.GetInstance()), BatchSlot: s.GetBatchSlot(),
			Idle: duration(s.GetIdleNs()), Model: modelOf(s.GetModel()), Request: workOf(s.GetRequest()),
		})
	}
	return h
}

func modelOf(m *nereidv1.ModelRef) infer.ModelRef {
	return infer.ModelRef{Namespace: m.GetNamespace(), Name: m.GetName(), Version: m.GetVersion(), Generation: m.GetGeneration()}
}

func model(m infer.ModelRef) *nereidv1.ModelRef {
	return &nereidv1.ModelRef{Name: m.Name, Version: m.Version, Generation: m.Generation, Namespace: m.Namespace}
}

func work(w infer.Work) *nereidv1.WorkId {
	id := &nereidv1.RequestId{Origin: w.Request.Origin, Number: w.Request.Number}
	return &nereidv1.WorkId{Request: id, Attempt: w.Attempt, Epoch: w.Epoch, Revision: w.Revision, Step: w.Step, Iteration: w.Iteration}
}

func workOf(m *nereidv1.WorkId) infer.Work {
	id := infer.RequestID{Origin: m.GetRequest().GetOrigin(), Number: m.GetRequest().GetNumber()}
	return infer.Work{
		Request: id, Attempt: m.GetAttempt(), Epoch: m.GetEpoch(), Revision: m.GetRevision(), Step: m.GetStep(), Iteration: m.GetIteration(),
	}
}

func sequence(s infer.Sequence) *nereidv1.Sequence {
	return &nereidv1.Sequence{Id: s.ID, Key: s.Key, Start: s.Start, End: s.End}
}

func sequenceOf(m *nereidv1.Sequence) infer.Sequence {
	return infer.Sequence{ID: m.GetId(), Key: m.GetKey(), Start: m.GetStart(), End: m.GetEnd()}
}
