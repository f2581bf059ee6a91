// Package requests implements the table of a gateway's requests. An entry stays in the table from the request's
// admission until neither its client nor another process needs it.
//
// An entry has two sides. The client's side ends with the final response. The table is the only finalizer:
// every outcome goes through it, whether the model's response, a refusal by the scheduler, a deadline or a
// cancellation, and each request gets exactly one final response. The other side is the submission, if
// schedulers and workers run in other processes. It keeps the request and its inputs until one of them has
// ended it, since a worker may still read them after the client has disconnected, and a scheduler may fail
// while it has the request. The request is then submitted again, as the next attempt, to the pool's next
// scheduler, which knows from the workers what has run and what has not. While there is no scheduler, requests
// wait, bounded in number, bytes and time.
//
// # Which responses count
//
// Within one process, the responses of the current attempt count. For a request that was submitted to another
// process, a result counts whatever its attempt, because the request has run. A refusal or failure counts if it
// belongs to the current attempt; one of an earlier attempt is retained in case the scheduler reports that that
// attempt is the one that runs. From then on every response counts.
//
// # Locks
//
// An entry's lock is held while its request is submitted and while a response is passed to its receiver, so
// that the events of one request happen one after another. It is acquired before the locks of a pool and of a
// shard, which are not held while other code is called.
package requests
