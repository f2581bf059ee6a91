// Package control makes the calls between services, and from operators to
// services, one at a time: loads and unloads, statistics and queues, the state
// of the cluster. No inference request passes through it.
//
// A [Finder] watches who holds a role that only one process may have: the
// leading registry, or the scheduler of a pool. The clients call the holder,
// follow the role to another process in the middle of a call, and return the
// same errors as the service returns in one process. A service is served by the
// Register functions on the listener that the process has for the others.
package control
