package codec

import (
	"bytes"
	"errors"
	"time"

	"pgregory.net/rapid"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// now is the time of all tests: late enough for what was before it.
const now = mono.Time(1 << 50)

func drawWork(t *rapid.T) infer.Work {
	return infer.Work{
		Request: infer.RequestID{Origin: rapid.Uint64().Draw(t, "origin"), Number: rapid.Uint64().Draw(t, "number")},
		Attempt: rapid.Uint32().Draw(t, "attempt"), Epoch: rapid.Uint64().Draw(t, "epoch"), Revision: rapid.Uint64().Draw(t, "revision"), Step: rapid.Uint32().Draw(t, "step"), Iteration: rapid.Uint32().Draw(t, "iteration"),
	}
}

func drawTensor(t *rapid.T) infer.Tensor {
	x := infer.Tensor{Name: rapid.String().Draw(t, "name"), Datatype: rapid.SampledFrom(tensor.Datatypes()).Draw(t, "datatype")}
	// Sizes on both sides of what is lent, packed and mapped.
	n := rapid.SampledFrom([]int64{0, 1, 3, 40, 1023, 1024, 2049, 9000}).Draw(t, "elements")
	x.Shape = tensor.Shape{n}
	if rapid.Bool().Draw(t, "batch") {
		x.Shape = tensor.Shape{1, n, 1}
	}
	size := n * int64(x.Datatype.Size())
	switch rapid.IntRange(0, 3).Draw(t, "place") {
	case 0:
		x.Data = tensor.Ref{Place: tensor.Arena}
	case 1:
		x.Data = tensor.Ref{Place: tensor.Remote, Holder: rapid.Uint64().Draw(t, "holder")}
	default:
		if size > 0 {
			x.Data = tensor.InHeap(bytes.Repeat([]byte{rapid.Byte().Draw(t, "fill")}, int(size)))
		}
		return x
	}
	x.Data.Region, x.Data.Slot = rapid.Uint64().Draw(t, "region"), rapid.Uint64().Draw(t, "slot")
	x.Data.Generation, x.Data.Offset, x.Data.Length = rapid.Uint64().Draw(t, "generation"), rapid.Int64Range(0, 1<<40).Draw(t, "offset"), size
	return x
}

func drawTensors(t *rapid.T) []infer.Tensor {
	var list []infer.Tensor
	for range rapid.IntRange(0, 4).Draw(t, "tensors") {
		list = append(list, drawTensor(t))
	}
	return list
}

func drawParameters(t *rapid.T) []infer.Parameter {
	var list []infer.Parameter
	for range rapid.IntRange(0, 2).Draw(t, "parameters") {
		p := infer.Parameter{Key: rapid.String().Draw(t, "key")}
		switch rapid.IntRange(0, 4).Draw(t, "kind") {
		case 0:
			p.Value = rapid.Bool().Draw(t, "bool")
		case 1:
			p.Value = rapid.Int64().Draw(t, "int")
		case 2:
			p.Value = rapid.Float64().Draw(t, "float")
		case 3:
			p.Value = rapid.String().Draw(t, "string")
		}
		list = append(list, p)
	}
	return list
}

func drawRequest(t *rapid.T) *infer.Request {
	r := &infer.Request{
		Work: drawWork(t), ID: rapid.String().Draw(t, "id"), BatchSize: rapid.Int64Range(0, 1<<40).Draw(t, "rows"),
		Model: infer.ModelRef{
			Namespace: rapid.String().Draw(t, "namespace"), Name: rapid.String().Draw(t, "model"),
			Version: rapid.Int64().Draw(t, "version"), Generation: rapid.Uint64().Draw(t, "generation"),
		},
		Inputs: drawTensors(t), Parameters: drawParameters(t),
		Priority: rapid.Uint64().Draw(t, "priority"), Timeout: time.Duration(rapid.Int64Range(0, 1<<40).Draw(t, "timeout")) * time.Microsecond,
		Tenant: rapid.String().Draw(t, "tenant"), CostClass: rapid.String().Draw(t, "class"), Trace: rapid.String().Draw(t, "trace"),
		Received: now,
	}
	for range rapid.IntRange(0, 2).Draw(t, "outputs") {
		r.Outputs = append(r.Outputs, infer.Output{Name: rapid.String().Draw(t, "output")})
	}
	if rapid.Bool().Draw(t, "under a policy") {
		r.Share = infer.Share{Band: rapid.Uint32().Draw(t, "band"), Minimum: rapid.Uint32().Draw(t, "minimum"), Weight: rapid.Uint32().Draw(t, "weight")}
	}
	if rapid.Bool().Draw(t, "bounded") {
		r.Deadline = now.Add(time.Duration(rapid.Int64Range(1, 1<<40).Draw(t, "left")))
	}
	if rapid.Bool().Draw(t, "of a sequence") {
		r.Sequence = drawSequence(t)
	}
	if rapid.Bool().Draw(t, "of a model") {
		of := drawWork(t)
		r.Parent = infer.Parent{Batch: drawBatchID(t), Unit: of.Unit(), Alone: rapid.Bool().Draw(t, "alone")}
	}
	if rapid.Bool().Draw(t, "a step") {
		r.KeepOutputs = rapid.Bool().Draw(t, "keeps outputs")
	}
	return r
}

func drawInstance(t *rapid.T) infer.InstanceID {
	return infer.InstanceID{Worker: rapid.Uint64().Draw(t, "worker"), Slot: rapid.Uint32().Draw(t, "instance")}
}

func drawBatchID(t *rapid.T) infer.BatchID {
	return infer.BatchID{Epoch: rapid.Uint64().Draw(t, "epoch"), Number: rapid.Uint64().Draw(t, "batch")}
}

func drawSequence(t *rapid.T) infer.Sequence {
	return infer.Sequence{
		ID: rapid.Uint64().Draw(t, "sequence"), Key: rapid.String().Draw(t, "key"), Start: rapid.Bool().Draw(t, "start"), End: rapid.Bool().Draw(t, "end"),
	}
}

func drawBatch(t *rapid.T) *infer.Batch {
	b := &infer.Batch{ID: drawBatchID(t), Instance: drawInstance(t)}
	slots := rapid.Bool().Draw(t, "slots")
	for range rapid.IntRange(0, 3).Draw(t, "requests") {
		b.Requests = append(b.Requests, drawRequest(t))
		b.Enqueued = append(b.Enqueued, now.Add(-time.Duration(rapid.Int64Range(0, 1<<40).Draw(t, "queued"))))
		if slots {
			b.Slots = append(b.Slots, infer.Slot{Index: rapid.Uint32().Draw(t, "slot"), Sequence: drawSequence(t)})
		}
	}
	if rapid.Bool().Draw(t, "bounded") {
		b.LatestStart = now.Add(time.Duration(rapid.Int64Range(1, 1<<40).Draw(t, "left")))
	}
	return b
}

func drawError(t *rapid.T) error {
	if rapid.Bool().Draw(t, "foreign") {
		return errors.New(rapid.String().Draw(t, "text"))
	}
	e := &errs.Error{
		Reason: rapid.SampledFrom(errs.Reasons()).Draw(t, "reason"), Op: rapid.String().Draw(t, "operation"), Msg: rapid.String().Draw(t, "message"),
		Model: rapid.String().Draw(t, "model"), RetryAfter: time.Duration(rapid.Int64Range(0, 1<<40).Draw(t, "retry")),
	}
	if rapid.Bool().Draw(t, "caused") {
		e.Err = errors.New(rapid.StringN(1, -1, -1).Draw(t, "cause"))
	}
	return e
}

func drawResponse(t *rapid.T) *infer.Response {
	r := &infer.Response{
		Work: drawWork(t), Index: rapid.Uint32().Draw(t, "index"), Final: rapid.Bool().Draw(t, "final"),
		Parameters: drawParameters(t), Immediate: rapid.Bool().Draw(t, "immediate"),
		Awaited: rapid.Bool().Draw(t, "awaited"), Kept: rapid.Uint64().Draw(t, "kept"),
	}
	if rapid.Bool().Draw(t, "executed") {
		span := func(name string) time.Duration { return time.Duration(rapid.Int64Range(0, 1<<40).Draw(t, name)) }
		r.Execution = infer.Execution{
			Batch: drawBatchID(t), Instance: drawInstance(t), BatchSize: rapid.Int64Range(0, 1<<40).Draw(t, "size"),
			Waited: span("waited"), Input: span("input"), Ran: span("ran"), Cost: span("cost"), Output: span("output"),
		}
	}
	if rapid.Bool().Draw(t, "failed") {
		r.Err, r.Final = drawError(t), true
	} else {
		r.Outputs = drawTensors(t)
	}
	return r
}

func drawInstanceFree(t *rapid.T) *infer.InstanceFree {
	f := &infer.InstanceFree{
		Batch: drawBatchID(t), Instance: drawInstance(t),
		Executions: rapid.IntRange(0, 1<<20).Draw(t, "executions"), BatchSize: rapid.Int64Range(0, 1<<40).Draw(t, "size"), Credits: rapid.IntRange(0, 1<<20).Draw(t, "credits"),
	}
	phase := func(name string) time.Duration { return time.Duration(rapid.Int64Range(0, 1<<30).Draw(t, name)) }
	f.Timing.Done = now
	f.Timing.InferDone = now.Add(-phase("output"))
	f.Timing.InputDone = f.Timing.InferDone.Add(-phase("infer"))
	f.Timing.Start = f.Timing.InputDone.Add(-phase("input"))
	for range rapid.IntRange(0, 5).Draw(t, "requests") {
		f.Outcomes = append(f.Outcomes, rapid.SampledFrom(outcomes()).Draw(t, "outcome"))
	}
	if rapid.Bool().Draw(t, "several") {
		for range f.Outcomes {
			first := mono.Time(0)
			if rapid.Bool().Draw(t, "more than one") {
				first = now.Add(-max(phase("first"), 1))
			}
			f.FirstResponses = append(f.FirstResponses, first)
		}
	}
	if rapid.Bool().Draw(t, "of a decoupled model") {
		for range f.Outcomes {
			f.Responses = append(f.Responses, drawUnitResponses(t, 0))
		}
	}
	if rapid.Bool().Draw(t, "free before the end") {
		for range f.Outcomes {
			f.Ends = append(f.Ends, rapid.SampledFrom([]infer.UnitEnd{infer.UnitEnded, infer.UnitMore, infer.UnitAgain}).Draw(t, "end"))
		}
	}
	return f
}

func drawUnitResponses(t *rapid.T, least int) (u infer.UnitResponses) {
	for range rapid.IntRange(least, 4).Draw(t, "responses") {
		u.Times = append(u.Times, time.Duration(rapid.Int64Range(0, 1<<40).Draw(t, "time")))
	}
	u.Empty = rapid.Bool().Draw(t, "empty")
	return u
}

func outcomes() []infer.Outcome {
	return []infer.Outcome{infer.Succeeded, infer.Failed, infer.Canceled, infer.Rejected}
}

func drawUnitDone(t *rapid.T) *infer.UnitDone {
	d := &infer.UnitDone{Batch: drawBatchID(t), Instance: drawInstance(t), Work: drawWork(t), Outcome: rapid.SampledFrom(outcomes()).Draw(t, "outcome"), At: now}
	if rapid.Bool().Draw(t, "more than one") {
		d.FirstResponse = now.Add(-time.Duration(rapid.Int64Range(1, 1<<30).Draw(t, "first")))
		d.Responses = drawUnitResponses(t, 1)
	}
	return d
}
