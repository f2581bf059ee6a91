// Package instance runs the scheduler's batches on a worker's instances.
//
// An [Executor] is the worker towards its pool's scheduler. It has one lane
// for each instance: a goroutine that takes batches one by one from a queue as
// deep as the instance's credits, and hands each to the backend as a batch. A prompt
// backend gets a batch that finds the lane empty from its caller, and one that pipelines
// a batch that finds it running, if that knows all before. Such a batch starts for the
// scheduler and the statistics when the one before has ended.
//
// # What a lane guarantees
//
// Every batch that is accepted, and not returned, has exactly one InstanceFree, and before that, or
// before the UnitDone that follows, each of its requests has exactly one final
// response and has been released, whatever the backend does: requests that it
// leaves without an answer fail as bugs, and so do those of a batch in which it panics. A
// request is released before its final response is given away, so that
// whoever has seen the last answer knows that the inputs are free.
//
// # Locks
//
// The executor's lock may be held while the table's is taken, and that while a
// batch's is, never the other way round. None is held while the backend, the responder or the
// scheduler is called.
package instance
