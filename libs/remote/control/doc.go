// Package control is both ends of the calls by which services and people ask
// each other for something, one call at a time: loads and unloads, statistics
// and queues, the state of the cluster. Nothing of it lies on the path of
// requests.
//
// The clients find the holder of a role by its lease, follow it to another
// process in the middle of a call, and give the same errors as the service
// does in one process. A service is served by the Register functions on the
// listener that the process has for the other services.
package control
