package bus

import (
	"context"
	"errors"
	"sync"
)

// Write is one change among those of [Bucket.Batch].
type Write[T any] struct {
	Key   string
	Value T
	// Delete removes the key; Value is not used.
	Delete bool
	// Replaces is the key's current revision; 0 means that the key does not exist. With Any, or
	// for a deletion of revision 0, the key may have any revision.
	Replaces uint64
	Any      bool
}

// Written is the result of a [Write]: the new revision, or the error of the method for a single
// key. A deletion has no revision.
type Written struct {
	Revision uint64
	Err      error
}

// batchWidth is how many writes of a batch are in flight at a time: more than
// the server processes while an answer travels.
const batchWidth = 64

// Batch changes different keys, many at a time and in any order, and returns the results in the
// given order. It is not a transaction.
func (b *Bucket[T]) Batch(ctx context.Context, writes []Write[T]) []Written {
	out := make([]Written, len(writes))
	if len(writes) == 1 {
		out[0] = b.do(ctx, writes[0])
		return out
	}
	next := make(chan int)
	var group sync.WaitGroup
	for range min(batchWidth, len(writes)) {
		group.Go(func() { // ends when all writes are received
			for i := range next {
				out[i] = b.do(ctx, writes[i])
			}
		})
	}
	for i := range writes {
		next <- i
	}
	close(next)
	group.Wait()
	return out
}

func (b *Bucket[T]) do(ctx context.Context, w Write[T]) (done Written) {
	switch {
	case w.Delete:
		done.Err = b.Delete(ctx, w.Key, w.Replaces)
	case w.Any:
		done.Revision, done.Err = b.Put(ctx, w.Key, w.Value)
	default:
		done.Revision, done.Err = b.Update(ctx, w.Key, w.Value, w.Replaces)
		if w.Replaces == 0 && errors.Is(done.Err, ErrConflict) { // the marker of an earlier value may be there
			done.Revision, done.Err = b.Create(ctx, w.Key, w.Value)
		}
	}
	return done
}
