// Package decisionlog stores the events and decisions of the scheduler's core, so that a run can be replayed and
// simulated.
//
// # Format
//
// A log starts with the line "nereid decision log 3", where 3 is the version of the format, followed by blocks: the
// length of the content and its CRC-32C, each as 4 bytes in little endian, and the content. The first block is a
// [Header] in JSON; each other block holds whole steps, one after another.
//
// A step is the time, the event, the number of decisions, and the decisions. Numbers are varints as in protocol
// buffers, signed ones in zigzag. Times are relative to the time of the step, which is relative to the previous step;
// ids of requests, batches, gateways and workers are relative to the last one of their kind. Strings and models are
// written out at their first occurrence and referenced by number after that. A configuration is written in JSON, as
// far as the core reads it; the shapes of inputs are written if the core uses them.
//
// A log that was cut off ends in the middle of a block. Any change of the format is a new version.
package decisionlog
