// Package shm holds tensors in memory that the processes of one host share,
// so that one reads what another has made without a copy.
//
// A process makes one [Arena], from which its pool of tensor memory is filled,
// and announces it to its peers; each peer opens it as a [Region]. A reference
// names a slot of it: what the pool handed out as one buffer. Beside each slot
// stands its generation, which grows when the slot is given back, so that a
// reference to what was there before is known for what it is.
//
// The memory is a file without a name (memfd), sealed so that it never
// shrinks: a reader meets no fault, whatever becomes of the arena's process.
// Readers cannot write to it.
package shm
