package core

import (
	"cmp"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
)

// DecisionKind distinguishes the kinds of decisions.
type DecisionKind uint8

// The decisions, and the fields of [Decision] that each uses.
const (
	// Dispatch sends Batch to the executor of Instance's worker. A is the batch's size, B its latest start.
	Dispatch DecisionKind = iota + 1
	// Refuse ends Unit, which has not run and will not, for Reason. A is the number of nanoseconds after which the
	// request could be met; 0 is unknown.
	Refuse
	// Fail ends Unit for Reason: it ran, or may have run, on a worker that is gone.
	Fail
	// HandOff ends Unit here: somebody else finishes it. A Reason is for the unit's gateway; without one, the unit's
	// worker continues to run it or has answered it. Instance says where the unit runs, if the core knows and the
	// gateway may not.
	HandOff
	// Complete ends Unit of Batch or, if Unit is zero, all units of Batch that had not ended.
	Complete
	// Abort tells Batch's executor that nobody waits for Unit any more, for Reason. The unit ends with its batch.
	Abort
	// Requeue says that the units of Batch that had not ended wait in the queue again.
	Requeue
	// UnknownBatch returns Batch, which the core no longer knows. The caller must release its requests.
	UnknownBatch
	// InstanceRetired says that Instance gets no more batches and runs none.
	InstanceRetired
	// Record asks the store to hold [Core.History] under the scheduler's epoch. A is its version. Workers that are
	// new in this version receive no batches until the store holds it.
	Record
	// WorkerGone says that Instance.Worker counts as dead. A is 1 if it had not given up its lease. A worker that has
	// left is gone once the store no longer names it; it may exit then.
	WorkerGone
	// Wait says that Unit is the first of those that wait although an instance is free, for Reason. No Reason means
	// that the batch waits for others to join. A is the time until which it waits (0 is unknown), B the size of the
	// batch that would go.
	Wait
	// Free says that Instance is free of Batch, some units of which remain: they have responses to come, or run
	// again.
	Free
	// Again says that Unit of Batch has run and waits for its next iteration. A is the time at which it started to
	// wait for the iteration that has just run.
	Again
)

// Decision is one thing to do. The caller carries out decisions in order. The exported fields are a fixed-size record
// that may be retained; the results of the methods are valid until the next [Core.Step].
type Decision struct {
	Kind     DecisionKind
	Reason   errs.Reason
	Unit     infer.Unit
	Batch    infer.BatchID
	Instance infer.InstanceID
	A, B     int64

	item  *Item
	batch *Batch
}

// Item returns the item that Unit was submitted as, for Refuse, Fail, HandOff, Abort, Again and a Complete of one
// unit.
func (d *Decision) Item() *Item { return d.item }

// Members returns the batch that Batch names, or nil if there is none. It returns nil for UnknownBatch.
func (d *Decision) Members() *Batch { return d.batch }

// Item is one unit as the core sees it. The driver fills in the exported fields and submits the item; the core then
// owns it until a decision ends it.
type Item struct {
	// Request is the waiting request. Once dispatched it belongs to the executor.
	Request *infer.Request
	// Work and Model are copied from the request and stay valid as long as the item.
	Work  infer.Work
	Model infer.ModelRef
	// BatchSize is the number of rows that the request occupies in a batch: at least 1.
	BatchSize int64
	// Bytes is the memory that the request occupies, its descriptor included.
	Bytes int64
	// Deadline is when the client stops waiting; 0 is never.
	Deadline mono.Time
	// Enqueued is when the request reached the scheduler, or when it finished its previous iteration.
	Enqueued mono.Time
	// Predicted is when an item with a deadline was expected to be done, as estimated on its arrival.
	Predicted mono.Time
	// Counted belongs to the driver: whether its statistics count the item as pending.
	Counted bool

	arrived  mono.Time // if it has run an iteration
	model    *model
	batch    *Batch // nil unless it runs
	gateway  *gateway
	shape    shape
	runsOn   infer.InstanceID // where it turned out to run when it was resubmitted
	parked   bool             // until it is known whether it may run
	aborted  bool             // nobody waits for it any more
	probe    bool             // runs whatever the costs say
	timeout  mono.Time        // when the queue policy rejects it; 0 is never
	behindAt mono.Time        // when it goes behind instead; 0 is never
	level    int              // index of its priority level
	flow     *flow            // in the model's queue
	band     *band            // set when queued, like tenant
	tenant   *tenant
	charged  float64 // of the tenant's share, in seconds of device time
	timer    timer
	links    [lists]link
	parent   *Batch // the batch that waits for it; nil for a client's request
	ends     uint64 // the last check of calls that found that it must end

	sequence   *sequence // that accepted it
	start, end bool      // whether it starts or ends the sequence
}

// Unit is the item's identity.
func (it *Item) Unit() infer.Unit { return it.Work.Unit() }

// Arrived is when the request reached the scheduler.
func (it *Item) Arrived() mono.Time { return cmp.Or(it.arrived, it.Enqueued) }

// Reset empties an item that a decision has ended, for another request.
func (it *Item) Reset() { *it = Item{} }

// doneBy reports whether an end at t is early enough for the client.
func (it *Item) doneBy(t mono.Time) bool { return it.Deadline == 0 || it.probe || t <= it.Deadline }

// Batch is a batch as its executor receives it, together with what the core knows about it.
type Batch struct {
	infer.Batch
	Model infer.ModelRef
	// Items are in the order of the requests. An item that has ended by itself is nil.
	Items []*Item
	// Size is the batch size of the execution. The size of a direct batch of sequences counts the rows of all slots
	// up to the highest that has a sequence.
	Size int64
	// Dispatched is when the batch left the queue.
	Dispatched mono.Time
	// Timing is the timing of the execution, set once the instance is free.
	Timing infer.Timing
	// Returned says that the requests came back to the core while the worker may still run them: whoever ends the
	// items also releases the requests.
	Returned bool
	// Adopted says that an earlier scheduler dispatched the batch. Such a batch names no requests.
	Adopted bool

	worker   *worker
	instance *instance     // nil once it is free or gone
	takes    time.Duration // estimated
	bytes    int64
	shape    shape
	open     int  // items that have not ended
	freed    bool // the units that have not ended have responses to come
	calls    list // requests that the batch waits for
}

// add appends an item.
func (b *Batch) add(it *Item) {
	it.batch = b
	b.Items = append(b.Items, it)
	b.open++
	b.Size += it.BatchSize
	b.bytes += it.Bytes
	b.shape = b.shape.larger(it.shape)
	b.Requests = append(b.Requests, it.Request)
	b.Enqueued = append(b.Enqueued, it.Enqueued)
	if s := it.sequence; s != nil {
		b.Slots = append(b.Slots, infer.Slot{
			Index:    uint32(s.slot), //nolint:gosec // less than a configured int32
			Sequence: infer.Sequence{ID: s.id.number, Key: s.id.text, Start: it.start, End: it.end},
		})
	}
}

// latestStart is the time after which no item's client waits any more; 0 if
// some item has no deadline.
func (b *Batch) latestStart() (last mono.Time) {
	for _, it := range b.Items {
		if it.Deadline == 0 {
			return 0
		}
		last = max(last, it.Deadline)
	}
	return last
}

// reset empties the batch for the next one, keeping its memory.
func (b *Batch) reset() {
	clear(b.Items)
	clear(b.Requests)
	*b = Batch{Items: b.Items[:0], Batch: infer.Batch{Requests: b.Requests[:0], Enqueued: b.Enqueued[:0], Slots: b.Slots[:0]}}
}
