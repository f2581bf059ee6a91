// Package requests holds a gateway's table of its requests, each from its admission
// until nobody has to do with it any more.
//
// An entry has two sides. The client's ends with the final response. The table is
// the only finalizer: whatever responds, the model, the scheduler's refusal, a
// deadline, a cancellation, goes through it, and each request gets exactly one final
// response. The other side is the submission, where schedulers and workers are in
// other processes: it keeps the request with its inputs until one of them has ended
// it, since a worker may read them although the client has gone, and a scheduler may
// die with it. Then the request is submitted again, with the next attempt, to
// the pool's next scheduler, which knows from the workers what ran and what did not.
// While there is none, requests wait, within bounds in number, bytes and time.
//
// # Which responses count
//
// In one process those of the present attempt. Of a request that was submitted to
// another process a result counts whatever the attempt: the request has run. A
// refusal or failure counts if it is that of the present attempt; one of an earlier
// attempt is kept for the case that the scheduler says that this attempt is the one
// that runs. From then on every response counts.
//
// # Locks
//
// An entry's lock is held while its request is submitted and while a response is
// handed to its receiver: what becomes of one request comes one after the other. It is
// held before a pool's and a shard's, which are not held while anything is called.
package requests
