// Package core decides who runs when, where and with whom. It is a state
// machine: [Core.Step] takes the time and one [Event], and returns the
// [Decision]s that follow. It has no clock, goroutine, lock, logger or I/O, so
// that the code that serves is also the code that is simulated, replayed and
// tested in virtual time. Equal histories give equal decisions.
//
// # Parts
//
//	membership  leases, streams and reports: who is alive, what may have started
//	requests    one table: unit → parked, queued, running or finished
//	queue       order, bounds and timeouts of what waits for a model
//	sequences   which of a model live, in which slots, and what of them waits
//	batcher     what goes together: none, dynamic, direct, oldest
//	arbiter     which proposal runs next, and on which instance
//	limiter     resources that executions share, and turns
//	cost        what executions take, by kind of device, batch size and shape
//	pace        which workers are slower than their kind, and have costs of their own
//
// Each part's state is written in its own file alone.
//
// # Ownership
//
// A submitted [Item] belongs to the core until a decision ends it: Refuse,
// Fail, HandOff or Complete. Exactly one of these names each item, so at every
// step
//
//	submitted = refused + failed + handed off + completed + in flight
//
// The requests of a dispatched batch belong to the executor until they come
// back with BatchReturned or WorkerDisconnected.
//
// # Time
//
// A Step costs at most what its event concerns. What concerns very many items,
// such as the loss of a gateway, is spread over steps: [Core.NextWake] then
// asks for the next one at once.
package core
