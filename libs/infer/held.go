package infer

import "time"

// Held is what a worker still has from the schedulers before, as it tells the
// one that it attaches to: so nothing runs twice, and what runs is counted. The
// zero value is that of a worker that has just begun.
type Held struct {
	// Epoch is the highest that the worker has seen. A scheduler with a lower
	// one has been deposed.
	Epoch   uint64
	Running []Running
	// Begun are the requests that the worker has begun, those that run included.
	Begun     []Begun
	Sequences []HeldSequence
}

// Running is an order that a worker has taken over and not completed.
type Running struct {
	// Order is the number that the scheduler of Epoch gave it.
	Order, Epoch uint64
	Instance     InstanceID
	// Requests are in the order of the batch's rows.
	Requests []Work
	// Rows are those of the requests, in their order: none of an earlier release.
	Rows []int64
}

// RowsOf is how many rows the request of an index has: at least 1.
func (r *Running) RowsOf(i int) int64 {
	if i >= len(r.Rows) {
		return 1
	}
	return max(r.Rows[i], 1)
}

// HeldSequence is a sequence whose state lives on a worker.
type HeldSequence struct {
	// Sequence has neither Start nor End.
	Sequence Sequence
	Instance InstanceID
	// BatchSlot is the place in the batch that it holds.
	BatchSlot uint32
	// Applied is how many of its requests are in the state.
	Applied uint64
	// Idle is what is left before it is idle for too long.
	Idle time.Duration
}
