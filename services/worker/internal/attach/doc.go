// Package attach connects a worker to the scheduler that leads its pool. To the
// worker it acts as one permanent scheduler. To each scheduler it first reports
// the batches that the worker has from earlier ones, from its table of batches.
// It passes a batch on when the inputs of its requests can be read.
//
// A process that was suspended for longer than its lease lives was considered
// dead. It returns batches that it accepted before and did not start, because
// their requests have failed or run elsewhere. See [Pulse].
package attach
