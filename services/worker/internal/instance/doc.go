// Package instance runs the scheduler's batches on a worker's instances.
//
// An [Executor] represents the worker to its pool's scheduler. Each instance has a goroutine that takes batches one
// by one from a queue as deep as the instance's credits, and passes each to the backend. The caller passes a batch to
// the backend without that goroutine if the backend is prompt and the instance is idle, or if the backend pipelines
// and has all earlier batches. For the scheduler and the statistics such a batch starts when the previous one has
// ended.
//
// # Guarantees
//
// Every batch that is accepted, and not returned, has exactly one InstanceFree. Before that, or before the UnitDone
// that follows, each of its requests has exactly one final response and has been released, whatever the backend does:
// requests that it leaves without a response fail as bugs, and so do those of a batch in which it panics. A request
// is released before its final response is delivered, so that the receiver of the last response knows that the inputs
// are free.
//
// # Locks
//
// Lock order: the executor, then the table, then a batch. None is held while the backend, the responder or the
// scheduler is called.
package instance
