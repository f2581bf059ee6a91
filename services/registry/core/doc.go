// Package core decides which models exist, in which content, and where they run. It is a
// state machine: [Core.Step] takes the time and one [Event], and returns [Effects]: what is
// to be written, read, answered and logged. It has no clock, goroutine, lock, logger or I/O,
// so that the registry that serves is also the one that is tested in virtual time. Equal
// histories give equal effects.
//
// # Parts
//
//	buckets     what the store holds, and what is written and not yet seen
//	fleet       workers, gateways and schedulers: who is alive, who has applied what
//	scans       when repositories are read, and which of the models found are taken
//	operations  loads and unloads: who runs, who waits for whom, when each is answered
//	rollouts    updates on their way: ready, failed, rolled back, and what they replace
//	placement   which models are to be placed again, assignments, fences, pools
//	memory      what is reserved of the workers' memory
//
// Each part's state is written in its own file alone. The packages below hold rules without
// state: catalog is what a scan found, publish makes values of it, place chooses workers,
// rollout judges what workers report.
//
// # Passes
//
// A step takes its event, and then makes a pass over what there is to do, in the order of
// [Core.pass]. The first part that has something to write ends the pass; the driver executes
// the commands in their order, up to the first that fails, and returns a [Done]. The next
// pass begins at the top, so that each part finds what those before it have written. After a
// failure the next pass waits for [Config.Retry] or an event.
//
// Every write names the revision that it replaces, so that a deposed leader that has not
// noticed it overwrites nothing. A leader that dies between two writes leaves nothing that
// the next one does not finish: what it needs to know is in the buckets.
//
// # Cost
//
// A step costs what its event concerns: a worker that joins or leaves has those models placed
// again that it runs, or that could use it. Only a scan's end looks at all models.
package core
