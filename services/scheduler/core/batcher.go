package core

import (
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/mono"
)

// batcher says what of a model's queue goes together, when, and where. It works
// in two phases, between which the arbiter decides.
type batcher interface {
	// Propose says what would run next. It changes nothing but that it takes
	// items out of the queue which no batch could have done in time.
	Propose(now mono.Time) Proposal
	// Commit moves the items of a batch for the instance from the queue into b.
	// It forms the batch anew, which may have become less than was proposed, or
	// nothing.
	Commit(now mono.Time, in *instance, b *Batch)
	// Backlog is how many batches, of what size, a tally makes that goes
	// before an item, and how large that item's own batch will be. Own says
	// that the tally is of the item's shape, and so may share that batch.
	Backlog(it *Item, t tally, own bool) (batches, size, joined int64)
}

// Proposal is what a batcher would run next. The zero Proposal is nothing, and
// is worth asking for again when an item comes or an instance is free.
type Proposal struct {
	// Ready says that the batch may go now.
	Ready bool
	// Prefer is the instance that Size and times are meant for. Bound says that no
	// other will do; otherwise each free instance of the model is eligible.
	Prefer *instance
	Bound  bool
	Size   int64
	// Urgency is when the batch must start for its tightest deadline; 0 if it has
	// none.
	Urgency mono.Time
	// Wait is when asking again is worthwhile though nothing has happened; 0 is
	// never. Reason says why the items wait, if not for others.
	Wait   mono.Time
	Reason errs.Reason
	// Late are items that left the queue since no batch could have done them in
	// time. They are valid until the next call.
	Late []*Item
}
