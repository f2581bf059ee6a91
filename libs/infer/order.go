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
	// learned costs.
	Device string
	// Credits is how many more orders the instance takes now. An order uses
	// one up; its completion gives it back.
	Credits int
	// Ahead is how many orders the instance takes beyond those that it runs at
	// a time: they wait there for their turn. Credits has them too.
	Ahead int
}

// Order tells an instance to run one batch. The executor that accepts it owns
// its requests: it answers each through the gateway's [Responder], releases
// it, and then reports one [Completion]. One that it cannot run it gives back by
// [Scheduler] Refuse.
type Order struct {
	// ID is the scheduler's number for the order, unique in its epoch.
	ID    uint64
	Epoch uint64
	// Instance is where the batch runs.
	Instance InstanceID
	Requests []*Request
	// Enqueued[i] is when Requests[i] entered the scheduler.
	Enqueued []mono.Time
	// LatestStart is the time after which the batch must not start any more,
	// since nobody would wait for its answer; 0 is never.
	LatestStart mono.Time
}

// Outcome is what became of one request of an order.
type Outcome uint8

// The outcomes.
const (
	// Succeeded: the request was answered by the model.
	Succeeded Outcome = iota
	// Failed: the model or backend failed.
	Failed
	// Canceled: the client went away before the answer.
	Canceled
	// Rejected: the request was not run, such as past the latest start.
	Rejected
)

// Timing is where the time of one execution went. Start is when the instance
// took up the batch, Done when the last output was handed over.
type Timing struct {
	Start, InputDone, InferDone, Done mono.Time
}

// Input is the time to gather the inputs.
func (t Timing) Input() time.Duration { return t.InputDone.Sub(t.Start) }

// Infer is the time in the model itself.
func (t Timing) Infer() time.Duration { return t.InferDone.Sub(t.InputDone) }

// Output is the time to hand over the outputs.
func (t Timing) Output() time.Duration { return t.Done.Sub(t.InferDone) }

// Completion reports that an order is over. Every accepted order has exactly
// one, after all its requests have been answered.
type Completion struct {
	// Order and Epoch are the order's.
	Order, Epoch uint64
	Instance     InstanceID
	// Outcomes has one entry for each request of the order, in its order.
	Outcomes []Outcome
	// FirstResponses has one entry for each request if some had more than one
	// response: when its first was given, or 0 if that was its only one.
	// Otherwise it is nil.
	FirstResponses []mono.Time
	// Executions is how often the model ran: 0 if the batch never started,
	// more than 1 if it was split.
	Executions int
	// Rows is the batch size of the execution.
	Rows   int64
	Timing Timing
	// Credits given back to the scheduler with this completion.
	Credits int
}

// Executor runs the orders of a pool's scheduler on one worker. Its methods
// do not block.
type Executor interface {
	// Execute takes over an order for one of the instances that the worker
	// has granted credits for.
	Execute(*Order)
	// Cancel says that nobody waits for one request of a running order. The
	// order still completes.
	Cancel(order uint64, request RequestID)
	// Retired answers a [Scheduler]'s Retire: no order for the instance is
	// under way and none will come.
	Retired(InstanceID)
}

// Scheduler is what a worker tells its pool's scheduler. Its methods do not
// block. For one instance the calls are: Grant, then Complete for each order,
// then Retire.
type Scheduler interface {
	// Attach introduces a worker by its incarnation, tells what it holds from
	// before, which passes to the scheduler, and says where its orders go. It
	// precedes its grants.
	Attach(worker uint64, held Held, e Executor)
	// Detach says that the worker is gone with all its instances; requests
	// that ran there and were not answered fail.
	Detach(worker uint64)
	Grant(Grant)
	// Retire asks that the instance get no more orders, except those that no
	// other instance can take from the queue.
	Retire(InstanceID)
	// Complete takes the completion over.
	Complete(*Completion)
	// Refuse gives back an order that the worker has not begun, in the place of
	// its completion: the requests that it still names, with their references,
	// are the scheduler's again; the others have been answered. The error's reason is no_worker where the instance takes no orders
	// any more.
	Refuse(*Order, error)
}
