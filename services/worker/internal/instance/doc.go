// Package instance runs the scheduler's orders on a worker's instances.
//
// An [Executor] is the worker towards its pool's scheduler. It has one lane
// for each instance: a goroutine that takes orders one by one from a queue as
// deep as the instance's credits, and hands each to the backend as a batch.
//
// # What a lane guarantees
//
// Every order that is accepted ends in exactly one completion, and before
// that each of its requests has exactly one final response and has been
// released, whatever the backend does: requests that it leaves without an
// answer fail as bugs, and so do those of a batch in which it panics. A
// request is released before its final response is given away, so that
// whoever has seen the last answer knows that the inputs are free.
//
// # Locks
//
// The executor's lock may be held while a batch's is taken, never the other
// way round. Neither is held while the backend, the responder or the
// scheduler is called.
package instance
