// Package shm holds tensors in memory that the processes of one host share, so
// that one process reads another's tensors without a copy.
//
// A process creates one [Arena], from which its tensor pool takes memory, and
// announces it to its peers; each peer opens it as a [Region]. A reference names
// a slot of it: a buffer that the pool handed out. Each slot has a generation
// that increases when the slot is returned, so that a reference to its earlier
// content is recognized.
//
// The memory is a file without a name (memfd), sealed against shrinking, so that
// readers never fault, whatever happens to the arena's process. Readers cannot
// write to it.
package shm
