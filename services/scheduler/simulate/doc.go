// Package simulate runs the scheduler's core in virtual time, on the requests of a
// decision log or on drawn ones, and on instances that take as long as was
// measured. Beside the core it has the simplest other policy, first in, first out,
// so that what a policy refuses can be held against what would have become of it.
//
// Equal workloads, costs and seeds give equal reports.
//
// What it leaves out: the ways between processes, but for the time before and
// after each execution; wake-ups that come late; memory; several responses or
// iterations of a request; and that instances slow each other down, except as
// costs have it that were measured so. A worker whose stream ends counts as lost.
package simulate
