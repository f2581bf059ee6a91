// Package core decides which requests run when, where and in which batch. It is a state machine: [Core.Step] takes
// the time and one [Event] and returns the resulting [Decision]s. It has no clock, goroutine, lock, logger or I/O, so
// production code can be simulated, replayed and tested in virtual time. Equal histories produce equal decisions.
//
// # Parts
//
//	membership  leases, streams and reports: who is alive, what may have started
//	requests    one table: unit → parked, queued, running or finished
//	queue       order, bounds and timeouts of a model's waiting requests
//	sequences   the live sequences of a model, their slots and waiting requests
//	batcher     which requests share a batch: none, dynamic, direct, oldest
//	arbiter     which proposal runs next, and on which instance
//	limiter     resources that executions share, and turns
//	cost        execution times by kind of device, batch size and shape
//	pace        workers that are slower than their kind, with their own costs
//
// Each part declares its state in its own file. Some steps that concern several parts, such as the end of a request,
// write the state of others.
//
// # Ownership
//
// The core owns a submitted [Item] until a decision ends it: Refuse, Fail, HandOff or Complete. Exactly one of these
// names each item, so at every step
//
//	submitted = refused + failed + handed off + completed + in flight
//
// The executor owns the requests of a dispatched batch until BatchReturned or WorkerDisconnected returns them.
//
// # Time
//
// The cost of a Step is at most proportional to the number of items in its event. Events that affect very many items,
// such as the loss of a gateway, are spread over several steps: [Core.NextWake] then asks for the next step
// immediately.
package core
