// Package worker is the service that runs models: the instances on one
// device, their memory and their execution.
//
// A worker holds the lease workers/<id>. It watches the buckets models and
// assignments, loads what its own keys assign to it, and publishes what it runs
// in the bucket instances. The pool's scheduler gets each instance before it is
// published as ready; the scheduler's batches come through the executor that the
// worker attached, and responses go straight to the responder. While the store is
// away the worker serves on with what it has.
//
// The worker chooses neither the order of requests nor where models run, and it
// never carries tensors over the store.
package worker
