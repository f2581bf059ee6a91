package core

import (
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
)

// Action is one thing to do. Actions are done in their order.
type Action struct {
	Kind       ActionKind
	Reason     errs.Reason
	Item       *Item
	Batch      *Batch
	Order      *infer.Order
	Completion *infer.Completion
	Instance   infer.InstanceID
	// Retry is after what time a refused request could be met; 0 is unknown.
	Retry time.Duration
}

// Item is one request as the core sees it. The driver fills in the exported
// fields and submits it; from then on until an action hands it back it is the
// core's.
type Item struct {
	// Request is what waits. Once dispatched it belongs to the executor.
	Request *infer.Request
	// Work and Model are copies of the request's, valid as long as the item.
	Work  infer.Work
	Model infer.ModelRef
	// Rows is how much of a batch the request takes: its rows, but at least 1.
	Rows int64
	// Bytes is the size of its inputs, for the bounds of the queue.
	Bytes int64
	// Deadline is when the client stops caring; 0 is never.
	Deadline mono.Time
	// Enqueued is when the request reached the scheduler.
	Enqueued mono.Time
	// Counted is the driver's own: whether its statistics have the item as
	// pending.
	Counted bool

	model   *model
	batch   *Batch // nil while waiting
	aborted bool
	tried   bool      // runs whatever the costs say
	timeout mono.Time // at which the queue policy gives the item up; 0 is none
	lateAt  mono.Time // at which it is put behind instead; 0 is never
	level   int       // index of its priority level
	timer   timer
	held    bool // until it is known whether it runs already
	link
}

// doneBy reports whether an end at t is early enough for the client.
func (it *Item) doneBy(t mono.Time) bool { return it.Deadline == 0 || it.tried || t <= it.Deadline }

// Reset empties an item that the core has handed back, for another request.
func (it *Item) Reset() { *it = Item{} }

// Batch is one order and the items that it runs.
type Batch struct {
	Order infer.Order
	Model infer.ModelRef
	Items []*Item
	Rows  int64
	// Dispatched is when the batch left the queue.
	Dispatched mono.Time
	// Kept says that the requests came back to the core while the worker may
	// run them: whoever ends the items also releases the requests.
	Kept bool
	// Adopted says that a scheduler before dispatched the batch. It names no
	// requests.
	Adopted bool

	instance *instance
	takes    time.Duration // estimated
	late     []*Item       // that cannot be done by their deadline
}

func (b *Batch) add(it *Item) {
	it.batch = b
	b.Items = append(b.Items, it)
	b.Rows += it.Rows
	b.Order.Requests = append(b.Order.Requests, it.Request)
	b.Order.Enqueued = append(b.Order.Enqueued, it.Enqueued)
}

// latestStart is the time after which no item's client waits any more; 0 if
// some item has no deadline.
func (b *Batch) latestStart() mono.Time {
	var last mono.Time
	for _, it := range b.Items {
		if it.Deadline == 0 {
			return 0
		}
		last = max(last, it.Deadline)
	}
	return last
}

// reset empties b for the next order, keeping its memory.
func (b *Batch) reset() {
	clear(b.Items)
	clear(b.Order.Requests)
	clear(b.late)
	*b = Batch{
		Items: b.Items[:0],
		late:  b.late[:0],
		Order: infer.Order{Requests: b.Order.Requests[:0], Enqueued: b.Order.Enqueued[:0]},
	}
}
