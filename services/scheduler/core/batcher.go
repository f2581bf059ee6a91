package core

import (
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/mono"
)

// batcher decides which items of a model's queue go together, when, and where. It works in two phases, between which
// the arbiter decides.
type batcher interface {
	// Propose returns what would run next. Its only side effect is to remove items from the queue that no batch could
	// have done in time.
	Propose(now mono.Time) Proposal
	// Commit moves the items of a batch for the instance from the queue into b. It forms the batch again; the result
	// may be smaller than the proposal, or empty.
	Commit(now mono.Time, in *instance, b *Batch)
	// Backlog returns how many batches, and of what size, a tally that goes before an item makes, and how large the
	// item's own batch will be. own says that the tally is of the item's shape, so its requests may share that batch.
	Backlog(it *Item, t tally, own bool) (batches, size, joined int64)
}

// Proposal is what a batcher would run next. The zero Proposal is nothing; it is worth asking again when an item
// arrives or an instance becomes free.
type Proposal struct {
	// Ready says that the batch may go now.
	Ready bool
	// Prefer is the instance that Size and the times are computed for. Bound says that only this instance may run the
	// batch; otherwise each free instance of the model may.
	Prefer *instance
	Bound  bool
	Size   int64
	// Urgency is when the batch must start to meet its tightest deadline; 0 if it has none.
	Urgency mono.Time
	// Wait is when asking again is worthwhile even if nothing happens; 0 is never. Reason says why the items wait,
	// unless they wait for others to join.
	Wait   mono.Time
	Reason errs.Reason
	// Late are items that were removed from the queue because no batch could have done them in time. They are valid
	// until the next call.
	Late []*Item
}
