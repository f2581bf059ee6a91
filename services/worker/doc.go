// Package worker is the service that runs models: the instances on one
// device, their memory and their execution.
//
// A worker holds the lease workers/<id>, in whose value it tells what it runs.
// It watches the buckets assignments, for its own key, and models, and brings
// what it has loaded to what they ask for. Each instance is offered to the
// pool's scheduler before the lease says that it is ready; the scheduler's
// orders come back through the executor that the worker attached, and
// responses go straight to the responder. While the store is away the worker
// serves on with what it has.
//
// The worker chooses neither the order of requests nor where models run, and
// it never carries tensors over the store.
package worker
