// Package worker is the service that runs models: the instances on one
// device, their memory and their execution.
//
// A worker holds the lease workers/<id>. It watches the buckets models and
// assignments, loads the versions that its own keys assign to it, and publishes
// what it runs in the bucket instances. The pool's scheduler gets each instance
// before it is published as ready. The scheduler's batches arrive through the
// executor that the worker attached, and responses go directly to the responder.
// While the store is unavailable, the worker continues with what it has.
//
// The worker chooses neither the order of requests nor where models run, and it
// never sends tensors through the store.
package worker
