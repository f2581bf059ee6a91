package infer

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// RequestID names a request for its whole life, across processes.
type RequestID struct {
	// Origin is the incarnation of the gateway that accepted the request: the epoch of its
	// lease. No two gateways, and no two incarnations of one, share it.
	Origin uint64
	// Number counts that gateway's requests from 1.
	Number uint64
}

// String writes the id for logs.
func (id RequestID) String() string {
	text := strconv.AppendUint(make([]byte, 0, 40), id.Origin, 10)
	return string(strconv.AppendUint(append(text, '-'), id.Number, 10))
}

// ParseRequestID reads what [RequestID.String] has written.
func ParseRequestID(text string) (id RequestID, ok bool) {
	origin, number, _ := strings.Cut(text, "-")
	var err, errNumber error
	id.Origin, err = strconv.ParseUint(origin, 10, 64)
	id.Number, errNumber = strconv.ParseUint(number, 10, 64)
	return id, err == nil && errNumber == nil
}

// Unit is the identity of what runs in one batch: an iteration of a step of a
// request, under an attempt of its gateway. A request that is no ensemble has
// step 0 alone, one that does not iterate iteration 0.
type Unit struct {
	Request         RequestID
	Step, Iteration uint32
	Attempt         uint32
}

// Work is the identity of one attempt at a request. It travels on every message
// about it, so that responses to old attempts, batches of deposed schedulers and
// requests against old snapshots are recognized.
type Work struct {
	Request RequestID
	// Step and Iteration are those of a [Unit]. The scheduler alone derives them.
	Step, Iteration uint32
	// Attempt counts submissions of the request, from 1.
	Attempt uint32
	// Epoch is that of the pool's scheduler which accepted the request; 0
	// before that. Workers refuse an epoch lower than one they have seen.
	Epoch uint64
	// Revision is that of the gateway's snapshot of the models by which the
	// request was routed.
	Revision uint64
}

// Unit returns the part of the work that runs in one batch.
func (w *Work) Unit() Unit {
	return Unit{Request: w.Request, Step: w.Step, Iteration: w.Iteration, Attempt: w.Attempt}
}

// BatchID names a batch among those of all schedulers that a pool had.
type BatchID struct{ Epoch, Number uint64 }

// String writes the id for messages.
func (id BatchID) String() string { return fmt.Sprintf("%d-%d", id.Epoch, id.Number) }

// Compare orders batches by epoch and number.
func (id BatchID) Compare(other BatchID) int {
	return cmp.Or(cmp.Compare(id.Epoch, other.Epoch), cmp.Compare(id.Number, other.Number))
}

// InstanceID names one instance of a model version on one worker.
type InstanceID struct {
	// Worker is the incarnation of the worker process: the epoch of its lease.
	Worker uint64
	// Slot is the worker's number for the instance. A worker never uses a
	// slot number twice.
	Slot uint32
}
