package core

import (
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
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
	// Reason, but its request was the worker's.
	Lost
	// Finished ends Batch as Completion says: the batch, its items and the
	// completion are the driver's to read until the next Step.
	Finished
	// Retired says that Instance gets no more orders and runs none.
	Retired
)
