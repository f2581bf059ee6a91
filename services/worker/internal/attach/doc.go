// Package attach joins a worker to the scheduler that holds its pool, whoever
// that is. To the worker it is its scheduler; to each scheduler it says first
// what the worker has of those before.
//
// # What it keeps
//
// An order is open from its arrival to its completion, whatever happens to the
// stream that it came on. A hello names the open orders and all requests of
// those that are over, so that nothing runs twice. Grants are made anew on each
// stream: an instance's credits less its open orders, whose completions give
// back the rest. What is completed while no stream is there is told by the next
// hello.
//
// # Fencing
//
// The floor is the highest epoch of a scheduler that was met. Each hello says it:
// a scheduler of a lower one has been deposed, and does not know where the later
// one is gone already. A session with a lower one ends at once, and orders of a
// lower one are given back. A session
// has ended, and brings nothing more, before the next one begins.
//
// A process that stood still for longer than its lease lives was believed dead:
// orders that it accepted before and did not begin are given back, since their
// requests have failed or run elsewhere. See [Pulse].
package attach
