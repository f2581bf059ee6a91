// Package attach joins a worker to the scheduler that holds its pool, whoever
// that is. To the worker it is its scheduler; to each scheduler it says first
// what the worker has of those before, as its table of batches has it. It
// passes a batch on when the inputs of its requests can be read.
//
// A process that stood still for longer than its lease lives was believed dead:
// batches that it accepted before and did not start are returned, since their
// requests have failed or run elsewhere. See [Pulse].
package attach
