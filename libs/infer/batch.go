package infer

import (
	"time"

	"github.com/nereid-serving/nereid/libs/mono"
)

// InstanceState is the state of an instance, or of a model version as the
// sum of its instances, under Triton's words.
type InstanceState uint8

// The states of an instance.
const (
	Unknown InstanceState = iota
	Loading
	Ready
	Unloading
	Unavailable
)

// String returns the state's word in the repository index.
func (s InstanceState) String() string {
	switch s {
	case Loading:
		return "LOADING"
	case Ready:
		return "READY"
	case Unloading:
		return "UNLOADING"
	case Unavailable:
		return "UNAVAILABLE"
	}
	return "UNKNOWN"
}

// Grant offers an instance's execution credits to the pool's scheduler. The
// first grant for an instance introduces it.
type Grant struct {
	Instance InstanceID
	Model    ModelRef
	// Name is the instance's name, such as digits_0_1, for logs and errors.
	Name string
	// Device is what the instance runs on, such as cpu or gpu:0: the key of
	// learned costs, and of what its worker reports of memory.
	Device string
	// Credits is how many more batches the instance accepts now. A batch uses one; its
	// [InstanceFree] returns it. A negative number withdraws credits: an instance without
	// credits is away and gets no batch.
	Credits int
	// Pipelined is how many batches the instance takes beyond those that it runs
	// at a time: they wait in its queue. Credits has them too.
	Pipelined int
	// Warmed are the costs of the instance's warm-up executions, if there were any.
	Warmed []Cost
}

// Cost is the measured time of executions of one batch size.
type Cost struct {
	// Device is the kind of device, such as cpu. In a [Grant] it is the instance's.
	Device string
	// Magnitude is the number of bits of how many elements a row has, 0 where all rows
	// of a model are of one size.
	Magnitude uint8
	BatchSize int64
	// Executions is how many there were.
	Executions uint32
	// Mean is their mean time; Deviation their mean deviation, as a share of it.
	Mean      time.Duration
	Deviation float64
}

// Batch is what runs together on an instance. The executor that accepts it owns its requests:
// it responds to each through the gateway's [Responder], releases it, and reports one
// [InstanceFree]. It returns a batch that it cannot run with [Scheduler] Return.
type Batch struct {
	ID BatchID
	// Instance is where the batch runs.
	Instance InstanceID
	// Requests are its units, each by its [Work].
	Requests []*Request
	// Enqueued[i] is when Requests[i] entered the scheduler.
	Enqueued []mono.Time
	// Slots[i] is the place of Requests[i], where the model batches sequences;
	// elsewhere it is nil.
	Slots []Slot
	// LatestStart is the time after which the batch must not start any more,
	// since no client waits for its responses; 0 is never.
	LatestStart mono.Time
}

// Only returns the batch with only the requests for which keep is true.
func (b *Batch) Only(keep func(i int) bool) *Batch {
	rest := &Batch{ID: b.ID, Instance: b.Instance, LatestStart: b.LatestStart}
	for i, r := range b.Requests {
		if !keep(i) {
			continue
		}
		rest.Requests, rest.Enqueued = append(rest.Requests, r), append(rest.Enqueued, b.Enqueued[i])
		if len(b.Slots) > 0 {
			rest.Slots = append(rest.Slots, b.Slots[i])
		}
	}
	return rest
}

// Outcome is the outcome of one request of a batch.
type Outcome uint8

// The outcomes.
const (
	// Succeeded: the model gave the response.
	Succeeded Outcome = iota
	// Failed: the model or backend failed.
	Failed
	// Canceled: the client disconnected before the response.
	Canceled
	// Rejected: the request was not run, such as past the latest start.
	Rejected
)

// UnitEnd is the state of a unit whose instance is free.
type UnitEnd uint8

// The states of a unit whose instance is free.
const (
	// UnitEnded has had its last response.
	UnitEnded UnitEnd = iota
	// UnitMore has responses to come, and then a [UnitDone].
	UnitMore
	// UnitAgain is to run another iteration.
	UnitAgain
)

// Timing has the phases of one execution. Start is when the instance started the batch, Done
// when the last output was handed over.
type Timing struct {
	Start, InputDone, InferDone, Done mono.Time
}

// Input is the time to gather the inputs.
func (t Timing) Input() time.Duration { return t.InputDone.Sub(t.Start) }

// Infer is the time in the model itself.
func (t Timing) Infer() time.Duration { return t.InferDone.Sub(t.InputDone) }

// Output is the time to hand over the outputs.
func (t Timing) Output() time.Duration { return t.Done.Sub(t.InferDone) }

// MaxResponseTimes limits the reported response times of a unit.
const MaxResponseTimes = 1024

// UnitResponses are the responses of one unit of a decoupled model.
type UnitResponses struct {
	// Times are how long each took, from the one before it or, the first, from the
	// end of the input phase. The last is that of the last response, unless there
	// are [MaxResponseTimes].
	Times []time.Duration
	// Empty says that the last response was an end without outputs.
	Empty bool
}

// InstanceFree says that an instance can accept its next batch after this one. Every accepted
// batch has exactly one. A unit with responses to come ends with its [UnitDone].
type InstanceFree struct {
	Batch    BatchID
	Instance InstanceID
	// Outcomes has one entry for each request of the batch, in its order. It counts
	// where the unit has ended.
	Outcomes []Outcome
	// Ends has one entry for each request of the batch; nil is that all have ended.
	Ends []UnitEnd
	// FirstResponses has one entry for each request if some had more than one
	// response: when its first was given, or 0 if that was its only one.
	// Otherwise it is nil.
	FirstResponses []mono.Time
	// Responses has one entry for each request if some had several responses or
	// none; otherwise it is nil.
	Responses []UnitResponses
	// Executions is how often the model ran: 0 if the batch never started,
	// more than 1 if it was split.
	Executions int
	// BatchSize is the batch size of the execution.
	BatchSize int64
	Timing    Timing
	// Credits given back to the scheduler.
	Credits int
	// Again are the requests of the units that are to run another iteration, which
	// pass to the scheduler with their references.
	Again []*Request
}

// UnitDone says that a unit with responses to come after its [InstanceFree] has had its last
// one.
type UnitDone struct {
	Batch    BatchID
	Instance InstanceID
	Work     Work
	Outcome  Outcome
	// FirstResponse is when its first response was given; 0 if it had only one.
	FirstResponse mono.Time
	// Responses are those that it had, if they were several or none.
	Responses UnitResponses
	// At is when its last response was given.
	At mono.Time
}

// Executor runs the batches of a pool's scheduler on one worker. Its methods
// do not block.
type Executor interface {
	// Execute takes over a batch for one of the instances that the worker
	// has granted credits for.
	Execute(*Batch)
	// Cancel says that the client of one request of a batch has disconnected. The batch still
	// ends.
	Cancel(batch BatchID, request RequestID)
	// Retired acknowledges a [Scheduler]'s Retire: no batch for the instance is
	// under way and none will come.
	Retired(InstanceID)
}

// Scheduler receives a worker's messages to its pool's scheduler. Its methods do not block. For
// one instance the calls are: Grant, then InstanceFree for each batch, then Retire.
type Scheduler interface {
	// Attach introduces a worker by its incarnation, with the state that it holds from earlier
	// schedulers, whose ownership passes to the scheduler, and with the executor for its
	// batches. It precedes its grants.
	Attach(worker uint64, held Held, e Executor)
	// Detach says that the worker is lost with all its instances; requests that ran there
	// without a response fail.
	Detach(worker uint64)
	Grant(Grant)
	// Retire asks that the instance get no more batches, except those that no
	// other instance can take from the queue.
	Retire(InstanceID)
	// InstanceFree takes the message over.
	InstanceFree(*InstanceFree)
	// UnitDone ends a unit after its batch's InstanceFree.
	UnitDone(UnitDone)
	// Return returns a batch that the worker has not started, instead of its InstanceFree: the
	// requests that it still names, with their references, are the scheduler's again; the
	// others have their responses. The error's reason is no_worker if the instance accepts no
	// more batches.
	Return(*Batch, error)
}
