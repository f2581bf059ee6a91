package infer

import "fmt"

// RequestID names a request for its whole life, across processes.
type RequestID struct {
	// Origin is the incarnation of the gateway that took the request in: the
	// epoch of its lease. No two gateways, and no two lives of one, share it.
	Origin uint64
	// Number counts that gateway's requests from 1.
	Number uint64
}

// String writes the id for logs.
func (id RequestID) String() string { return fmt.Sprintf("%d-%d", id.Origin, id.Number) }

// Work is the identity of one try at a request. It travels on every message
// about it, so that an answer to an old try, an order of a deposed scheduler
// or a request against a forgotten snapshot is known for what it is.
type Work struct {
	Request RequestID
	// Attempt counts submissions of the request, from 1.
	Attempt uint32
	// Epoch is that of the pool's scheduler which accepted the request; 0
	// before that. Workers refuse an epoch lower than one they have seen.
	Epoch uint64
	// Revision is that of the gateway's snapshot of the models by which the
	// request was routed.
	Revision uint64
}

// InstanceID names one instance of a model version on one worker.
type InstanceID struct {
	// Worker is the incarnation of the worker process: the epoch of its lease.
	Worker uint64
	// Slot is the worker's number for the instance. A worker never uses a
	// slot number twice.
	Slot uint32
}
