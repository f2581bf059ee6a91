// Package backend is the interface between the worker and the engines that run
// models: loading a version, creating its instances, and executing batches.
package backend

import (
	"context"
	"fmt"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
)

// Backend adapts one engine.
type Backend interface {
	// Load prepares a model version for instances. Errors are *errs.Error
	// with a message for the operator: what is wrong with which file, and
	// what to do.
	Load(ctx context.Context, v Version) (Model, error)
	// Close frees the engine after all models are closed.
	Close() error
}

// Completer is a backend whose models complete their own configurations.
type Completer interface {
	// Complete runs the code of a version that completes its configuration, which
	// lacks what that gives, and returns the outcome as modelconfig.JSON writes
	// configurations. What the code fails with has the reason load_failed and the
	// text that clients see.
	Complete(ctx context.Context, v Version) ([]byte, error)
}

// Version is a model version to load.
type Version struct {
	Ref    infer.ModelRef
	Config *modelconfig.Config
	// ModelDir is the model's directory, Dir the version's within it.
	ModelDir, Dir string
	// Device is what its instances run on.
	Device Device
}

// Device is what instances run on.
type Device struct {
	// Kind is KIND_GPU for a GPU; all others are the CPUs.
	Kind modelconfig.DeviceKind
	// Number is a GPU's, as its machine counts them from 0.
	Number int
}

// GPU reports whether the device is one.
func (d Device) GPU() bool { return d.Kind == modelconfig.KindGPU }

// Model is a loaded model version, shared by its instances.
type Model interface {
	// NewInstance makes one executable copy.
	NewInstance(ctx context.Context, spec InstanceSpec) (Instance, error)
	// Close frees the model after all its instances are closed.
	Close() error
}

// Separate is a model whose instances may be made at the same time, since each is a
// process of its own. Others share an engine, where the load of one slows the others.
type Separate interface {
	// Separate reports whether they are to be.
	Separate() bool
}

// InstanceSpec describes an instance to make.
type InstanceSpec struct {
	Name string
	// Kind is the device kind, Device its number (0 for CPU).
	Kind   modelconfig.DeviceKind
	Device int
	// HostPolicy is that of its group, as the configuration names it.
	HostPolicy string
}

// HostPolicy is the name of the host policy of instances. Where the configuration names
// none it is that of their device.
func HostPolicy(name string, kind modelconfig.DeviceKind, device int) string {
	switch {
	case name != "":
		return name
	case kind == modelconfig.KindModel:
		return "model"
	case kind == modelconfig.KindGPU:
		return fmt.Sprintf("gpu_%d", device)
	}
	return "cpu"
}

// Instance runs the batches of one instance queue of the worker. It may be a
// [Stopper] and [Changing].
type Instance interface {
	// Credits is how many batches the instance takes at the same time.
	Credits() int
	// Execute runs a batch. It takes over the batch, answers each of its
	// requests through it and ends with [Batch.Done], either before it
	// returns or later from any goroutine. It is called from one goroutine.
	Execute(b Batch)
	// Close frees the instance. No batch is under way.
	Close() error
}

// Prompt is an instance that can often pass a batch on without holding up its caller,
// who may be the scheduler's loop.
type Prompt interface {
	// TryExecute is [Instance.Execute] where that neither waits nor works for long;
	// else it reports false, and has left the batch as it was. A call of Execute for an
	// earlier batch, which has ended, may not have returned yet.
	TryExecute(b Batch) bool
}

// Pipelining is an instance that takes batches while it runs others. It begins them
// itself, in the order in which it got them, each when the instance is free of the one
// before. One that ends before it has begun a batch gives it back.
type Pipelining interface {
	Prompt
	// Pipelined is how many batches it takes beyond those that it runs.
	Pipelined() int
}

// AllRequests has the batch make a call as a whole.
const AllRequests = -1

// Batch is one batch being executed, as an instance sees it. Requests are
// answered in any order, each with responses of which the last is final.
type Batch interface {
	// Requests are the batch's requests in the order of their rows. The
	// batch releases them; an instance that keeps input bytes past the final
	// response retains them.
	Requests() []*infer.Request
	// BatchSize is the sum of the requests' batch sizes.
	BatchSize() int64
	// Respond sends a response to request i and takes it over. Identity,
	// index and ownership are the batch's concern: set Outputs, Parameters,
	// Final, Err. A request that has ended takes no more; such a response is
	// released.
	Respond(i int, r *infer.Response)
	// Room returns a channel that can be received from when request i has room for
	// one more response: its client has read enough of those before, or waits no
	// more. A backend that gives several responses receives from it before each but
	// the last, in a goroutine for each request, so that a client that does not read
	// holds up nobody else. Whoever does without has requests fail whose clients
	// leave too much unread.
	Room(i int) <-chan struct{}
	// Again ends request i in this batch without a final response, since the model is
	// to run it again: a later batch of the instance has it with the same inputs, the
	// next Iteration in its Work, and neither START nor END. It is called before Free,
	// and reports whether that is so: a request that was canceled ends, and one fails
	// whose configuration has no iterative_sequence.
	Again(i int) bool
	// Canceled reports whether request i was canceled. It may turn true
	// at any time.
	Canceled(i int) bool
	// OnCancel sets a function to be called, at most once and from any
	// goroutine, when every request of the batch has been canceled or had
	// ended before that. If that is so already it is called at once. It is
	// not called after Done, and may itself answer requests and call Done.
	OnCancel(stop func())
	// OnCancelEach sets a function to be called, once and from any goroutine, for each
	// request that has been canceled before it ended. For those that are canceled already
	// it is called at once. It must not use the batch: that may be done by then.
	OnCancelEach(tell func(i int))
	// Call asks another model, or the same, on behalf of request i, whose last response
	// is to come, or of [AllRequests]: see [infer.Caller]. It does not block; an instance
	// that waits for the responses holds what it has meanwhile. A call of a request is
	// canceled when that is, one of all when all of them are; a request that has its last
	// response makes no more. What has been called goes on when its parent has ended.
	Call(i int, c *infer.Call, receive func(*infer.Response)) (cancel func())
	// InputDone and InferDone mark the ends of the phases, once each.
	InputDone()
	InferDone()
	// Executed counts one run of the model.
	Executed()
	// GiveBack ends a batch of which the instance has begun nothing: it waits again for
	// an instance. The reason of the error says why, as [errs.InstanceAway].
	GiveBack(err error)
	// Free says that the instance can take its next batch, before Done: requests
	// without a final response get theirs later. Done says it, too.
	Free()
	// Done ends the batch. Requests without a final response, which are not to run
	// again, fail as bugs.
	Done()
}
