// Package control makes the calls between services, and from operators to
// services, outside the data path: loads and unloads, statistics and queues,
// cluster status. No inference request passes through it.
//
// A [Finder] watches who leads a role that only one process may have: the
// leading registry, or the scheduler of a pool. Clients call the leader, follow
// the role to another process in the middle of a call, and return the same errors
// as the service returns within one process. The Register functions serve a
// service on the listener that its process has for other services.
package control
