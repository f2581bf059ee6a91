package infer

import "time"

// Held is the state that a worker has from earlier schedulers and reports to the one to which
// it attaches, so that nothing runs twice and running batches are counted. The zero value is
// that of a worker that has just started.
type Held struct {
	// Epoch is the highest that the worker has seen. A scheduler with a lower
	// one has been deposed.
	Epoch   uint64
	Running []Running
	// Started are the requests that the worker has started, except those of Running.
	Started   []Started
	Sequences []HeldSequence
	// Memory is how many bytes the inputs of the worker's batches may have together;
	// 0 is no bound.
	Memory int64
}

// Running is a batch that a worker has accepted and not finished.
type Running struct {
	Batch    BatchID
	Instance InstanceID
	// Units are the unfinished ones, in the order of the batch.
	Units []Work
	// BatchSizes are the batch sizes of their requests, in their order.
	BatchSizes []int64
	// InstanceFree says that the instance is free of it: the units have responses
	// to come.
	InstanceFree bool
}

// BatchSizeOf is the batch size of the request of unit i: at least 1.
func (r *Running) BatchSizeOf(i int) int64 {
	if i >= len(r.BatchSizes) {
		return 1
	}
	return max(r.BatchSizes[i], 1)
}

// HeldSequence is a sequence whose state lives on a worker.
type HeldSequence struct {
	// Model is the loaded content of the instance.
	Model ModelRef
	// Sequence has neither Start nor End.
	Sequence Sequence
	Instance InstanceID
	// BatchSlot is the place in the batch that it holds.
	BatchSlot uint32
	// Idle is the rest of its idle time.
	Idle time.Duration
	// Request is that of the sequence which runs, or is to run another iteration,
	// where the model is iterative; zero is none.
	Request Work
}
