// Package core decides who runs when, where and with whom. It is a state
// machine: [Core.Step] takes one [Event] and the time, and returns the
// [Action]s that follow. It has no clock, goroutine, lock, logger or I/O, so
// that the code that serves is also the code that is simulated, replayed and
// tested in virtual time.
//
// # State
//
// The core knows models (one per loaded content of a model version),
// instances with execution credits, items (requests that wait or run) and
// batches (items that run together on an instance). What waits for a model,
// and which of it goes together, is the business of the model's policy.
//
// # Ownership
//
// A submitted [Item] belongs to the core until an action hands it back:
// Finish, Lost or, inside its batch, Completed. The requests of a dispatched
// batch belong to the executor. Exactly one of these actions names each
// item, so at every step
//
//	admitted = completed + cancelled + expired + lost + passed on + in flight
//
// # Room
//
// A sequence is a policy that pins items to instances and hears of completed
// batches. An ensemble's step is an item whose completion submits the next ones;
// the driver turns its Completed into Submit events. A decoupled model sends
// its responses past the scheduler: one completion ends it like any other.
package core
