// Package decisionlog keeps what enters the scheduler's core and what the core
// decides, so that a run can be replayed and simulated.
//
// # Format
//
// A log is the line "nereid decision log 3", where 3 is the version of the
// format, and then blocks: the length of the content and its CRC-32C, each in 4
// bytes of little endian, and the content. The first block is a [Header] in JSON;
// each other one holds whole steps, one after another.
//
// A step is the time, the event, the number of decisions and these. Numbers are
// varints as in protocol buffers, signed ones in zigzag. Times are the
// difference to the time of the step, and this one to the time of the step
// before; ids of requests, batches, gateways and workers are the difference to the
// last one of their kind. Strings and models have numbers by their first
// occurrence, where they are written out. A configuration is written in JSON, as
// far as the core reads it; the shapes of inputs are written where they matter to
// it.
//
// A log that was cut off ends in the middle of a block. Any change to what is
// written is a new version.
package decisionlog
