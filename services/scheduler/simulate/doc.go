// Package simulate runs the scheduler's core in virtual time, on the requests of a decision log or on generated ones,
// and on instances whose execution times were measured. It also runs the simplest other policy, first in, first out,
// so that the refusals of a policy can be compared with what would have happened otherwise.
//
// Equal workloads, costs and seeds produce equal reports.
//
// It does not simulate: communication between processes, except the time before and after each execution; late
// wake-ups; memory; several responses or iterations of a request; and instances that slow each other down, except as
// far as measured costs include that. A worker whose stream ends counts as lost.
package simulate
