package core

import (
	"cmp"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
)

// DecisionKind tells decisions apart.
type DecisionKind uint8

// The decisions, and the fields of [Decision] that each uses.
const (
	// Dispatch gives Batch to the executor of Instance's worker. A is its size, B
	// its latest start.
	Dispatch DecisionKind = iota + 1
	// Refuse ends Unit, which has not run and will not, for Reason. A is after
	// how many nanoseconds it could be met; 0 is unknown.
	Refuse
	// Fail ends Unit for Reason, since it ran, or may have run, on a worker that
	// is gone.
	Fail
	// HandOff ends Unit here: others finish it. Reason, if there is one, is for
	// its gateway; otherwise its worker runs it on or has answered it. Instance is
	// where it runs, if that is known and its gateway may not know.
	HandOff
	// Complete ends Unit of Batch or, where Unit is zero, all of Batch that had
	// not ended.
	Complete
	// Abort tells Batch's executor that nobody waits for Unit any more, for
	// Reason. The unit ends with its batch.
	Abort
	// Requeue says that what had not ended of Batch waits again.
	Requeue
	// UnknownBatch gives back Batch, which the core does not know any more: its
	// requests are to be released.
	UnknownBatch
	// InstanceRetired says that Instance gets no more batches and runs none.
	InstanceRetired
	// Record asks the store to hold [Core.History] under the scheduler's epoch. A
	// is its version. Until the store does, workers new in it get no batch.
	Record
	// WorkerGone says that Instance.Worker counts as dead. A is 1 if it had not
	// given up its lease. One that has left is gone when the store does not name it
	// any more; it may exit then.
	WorkerGone
	// Wait says that Unit is the first of those that wait though an instance is
	// free, for Reason; none is that others may join. A is until when, 0 being
	// unknown, and B the size of what would go.
	Wait
	// Free says that Instance is free of Batch, of which units are left: they have
	// responses to come, or run again.
	Free
	// Again says that Unit of Batch has run, and waits for its next iteration. A is
	// when it began to wait for this one.
	Again
)

// Decision is one thing to do. Decisions are done in their order. The exported
// fields are a record of fixed size, which can be kept; what the methods return
// is valid until the next [Core.Step].
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

// Item is what Unit was submitted as: of Refuse, Fail, HandOff, Abort, Again and a
// Complete of one unit.
func (d *Decision) Item() *Item { return d.item }

// Members is the batch that Batch names, except of UnknownBatch; nil if there
// is none.
func (d *Decision) Members() *Batch { return d.batch }

// Item is one unit as the core sees it. The driver fills in the exported fields
// and submits it; from then on until a decision ends it it is the core's.
type Item struct {
	// Request is what waits. Once dispatched it belongs to the executor.
	Request *infer.Request
	// Work and Model are copies of the request's, valid as long as the item.
	Work  infer.Work
	Model infer.ModelRef
	// BatchSize is how much of a batch the request takes: at least 1.
	BatchSize int64
	// Bytes is what the request holds in memory, its descriptor included.
	Bytes int64
	// Deadline is when the client stops caring; 0 is never.
	Deadline mono.Time
	// Enqueued is when the request reached the scheduler, or had run the iteration
	// before.
	Enqueued mono.Time
	// Predicted is when an item with a deadline was expected to be done as it came.
	Predicted mono.Time
	// Counted is the driver's own: whether its statistics have the item as
	// pending.
	Counted bool

	arrived  mono.Time // where it has run an iteration
	model    *model
	batch    *Batch // nil unless it runs
	gateway  *gateway
	shape    shape
	runsOn   infer.InstanceID // where it turned out to run when it was submitted again
	parked   bool             // until it is known whether it may run
	aborted  bool             // nobody waits for it any more
	probe    bool             // runs whatever the costs say
	timeout  mono.Time        // at which the queue policy gives it up; 0 is none
	behindAt mono.Time        // at which it goes behind instead; 0 is never
	level    int              // index of its priority level
	flow     *flow            // in the model's queue
	band     *band            // since it was queued, as tenant
	tenant   *tenant
	charged  float64 // of the tenant's share, in seconds of device time
	timer    timer
	links    [lists]link
	parent   *Batch // that waits for it; nil for a client's
	ends     uint64 // the last check of calls that found it to end

	sequence   *sequence // that has taken it in
	start, end bool      // of it
}

// Unit is the item's identity.
func (it *Item) Unit() infer.Unit { return it.Work.Unit() }

// Arrived is when the request reached the scheduler.
func (it *Item) Arrived() mono.Time { return cmp.Or(it.arrived, it.Enqueued) }

// Reset empties an item that a decision has ended, for another request.
func (it *Item) Reset() { *it = Item{} }

// doneBy reports whether an end at t is early enough for the client.
func (it *Item) doneBy(t mono.Time) bool { return it.Deadline == 0 || it.probe || t <= it.Deadline }

// Batch is a batch, as its executor gets it, with what the core knows of it.
type Batch struct {
	infer.Batch
	Model infer.ModelRef
	// Items are in the order of the requests. One that has ended alone is
	// nil.
	Items []*Item
	// Size is the batch size of the execution. That of a direct batch of sequences
	// counts the rows of all slots up to the highest that a sequence has.
	Size int64
	// Dispatched is when the batch left the queue.
	Dispatched mono.Time
	// Timing is that of the execution, where the instance is free.
	Timing infer.Timing
	// Returned says that the requests came back to the core while the worker may
	// run them: whoever ends the items also releases the requests.
	Returned bool
	// Adopted says that an earlier scheduler dispatched the batch. It names no
	// requests.
	Adopted bool

	worker   *worker
	instance *instance     // nil when that is free or gone
	takes    time.Duration // estimated
	bytes    int64
	shape    shape
	open     int  // items that have not ended
	freed    bool // what has not ended has responses to come
	calls    list // that it waits for
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
