package core

import (
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
)

// EventKind tells events apart.
type EventKind uint8

// The events, and the fields of [Event] that each uses.
const (
	// Submit brings a new Item.
	Submit EventKind = iota + 1
	// Cancel says that nobody waits for Request any more.
	Cancel
	// Configure makes a model known, or gives an early one its configuration.
	Configure
	// Remove says that the model leaves the repository. It is forgotten when
	// its last instance has retired.
	Remove
	// Granted offers credits of an instance; the first introduces it.
	Granted
	// Retire asks that Instance be drained.
	Retire
	// Completed ends an order.
	Completed
	// Detached says that the worker Instance.Worker is gone.
	Detached
	// Lead says that the pool is the scheduler's under Epoch from now on, and
	// that Workers are alive of which it must hear what they have begun, by
	// Until at the latest. As long as until then, a model without an instance is
	// waited for when it is first asked for.
	Lead
	// Resign says that the pool is another's: everything is given up, and the
	// models alone are kept.
	Resign
	// Attached brings what the worker Instance.Worker has begun, and that its
	// instances will be granted.
	Attached
	// Parted says that the worker Instance.Worker cannot be reached, which says
	// nothing about what it runs. Its instances are forgotten. The requests of
	// the Orders under way there are the core's again, beside the worker's.
	// Models without an instance are waited for until Until.
	Parted
	// Refused gives back the one of Orders, with its requests, which its worker
	// has not begun. Reason says why: no_worker is that there is no such instance
	// any more, peer_unreachable that the worker will attach anew.
	Refused
	// Left says that the gateway Origin cannot be reached: what it waits for is
	// dropped for peer_unreachable, unless it runs.
	Left
	// Tick says that the time has come which [Core.NextWake] asked for.
	Tick
)

// Event is one thing that happened.
type Event struct {
	Kind       EventKind
	Item       *Item
	Request    infer.RequestID
	Model      *Model
	Grant      *infer.Grant
	Instance   infer.InstanceID
	Completion *infer.Completion

	Epoch   uint64
	Workers []uint64
	// Blind says that a worker has died of which nobody knows what it had begun.
	Blind  bool
	Until  mono.Time
	Held   *infer.Held
	Orders []*infer.Order
	Reason errs.Reason
	Origin uint64
}

// Model is a loaded content of a model version and how it is served.
type Model struct {
	Ref infer.ModelRef
	// Config may be nil in a Remove.
	Config *modelconfig.Config
}

// ActionKind tells actions apart.
type ActionKind uint8

// The actions, and the fields of [Action] that each uses.
const (
	// Dispatch gives Batch's order to the executor of its instance's worker.
	Dispatch ActionKind = iota + 1
	// Finish ends Item, which has not run, for Reason: its request is
	// released and answered, and the item is the driver's again.
	Finish
	// Abort tells Batch's executor that nobody waits for Item any more, for
	// Reason. The item remains the core's until its batch is completed.
	Abort
	// Lost ends Item, which ran on a worker that is gone: it is answered for
	// Reason, but its request was the worker's, unless its batch was kept.
	Lost
	// Passed ends Batch here: its worker goes on with it or has answered it, and
	// a completion would go to another scheduler or was lost.
	Passed
	// Disowned gives back Order, of which the core does not know any more: its
	// requests are to be released.
	Disowned
	// Requeued says that the items of Batch wait again.
	Requeued
	// Finished ends Batch as Completion says: the batch, its items and the
	// completion are the driver's to read until the next Step.
	Finished
	// Retired says that Instance gets no more orders and runs none.
	Retired
)
