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
	// Load prepares a model version for instances. Errors are *errs.Error with a message for the operator: what is
	// wrong with which file, and what to do.
	Load(ctx context.Context, v Version) (Model, error)
	// Close frees the engine after all models are closed.
	Close() error
}

// Completer is a backend whose models complete their own configurations.
type Completer interface {
	// Complete runs the code of a version that completes its configuration, and returns the result in the format of
	// modelconfig.JSON. Version's configuration lacks what the code adds. If the code fails, the error has the reason
	// load_failed and the text that clients see.
	Complete(ctx context.Context, v Version) ([]byte, error)
}

// Version is a model version to load.
type Version struct {
	Ref    infer.ModelRef
	Config *modelconfig.Config
	// ModelDir is the model's directory, Dir the version's directory within it.
	ModelDir, Dir string
	// Device is what its instances run on.
	Device Device
}

// Device is what instances run on.
type Device struct {
	// Kind is KIND_GPU for a GPU; all others are the CPUs.
	Kind modelconfig.DeviceKind
	// Number is a GPU's number on its machine, from 0.
	Number int
}

// GPU reports whether the device is a GPU.
func (d Device) GPU() bool { return d.Kind == modelconfig.KindGPU }

// Model is a loaded model version, shared by its instances.
type Model interface {
	// NewInstance creates one executable copy.
	NewInstance(ctx context.Context, spec InstanceSpec) (Instance, error)
	// Close frees the model after all its instances are closed.
	Close() error
}

// Separate is a model whose instances may be created concurrently, since each is a process of its own. Other models
// share an engine, where loading one slows down the others.
type Separate interface {
	// Separate reports whether the instances should be created concurrently.
	Separate() bool
}

// InstanceSpec describes an instance to create.
type InstanceSpec struct {
	Name string
	// Kind is the device kind, Device its number (0 for CPU).
	Kind   modelconfig.DeviceKind
	Device int
	// HostPolicy is the host policy of its group, as named in the configuration.
	HostPolicy string
}

// HostPolicy returns the name of an instance's host policy. If the configuration names none, it is that of the
// instance's device.
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
	// Credits returns how many batches the instance accepts at the same time.
	Credits() int
	// Execute runs a batch. It takes ownership of the batch, answers each of its requests through it and ends with
	// [Batch.Done], either before it returns or later from any goroutine. Execute is called from one goroutine.
	Execute(b Batch)
	// Close frees the instance. No batch may be in flight.
	Close() error
}

// Prompt is an instance that can often accept a batch without blocking its caller, which may be the scheduler's loop.
type Prompt interface {
	// TryExecute is [Instance.Execute] if that neither blocks nor works for long; otherwise it reports false and
	// leaves the batch unchanged. A call of Execute for an earlier batch, which has ended, may not have returned yet.
	TryExecute(b Batch) bool
}

// Pipelining is an instance that accepts batches while it runs others. It starts them itself, in the order in which
// it received them, each when the instance is free of the previous one. An instance that ends before it has started a
// batch gives the batch back.
type Pipelining interface {
	Prompt
	// Pipelined is how many batches it accepts beyond those that it runs.
	Pipelined() int
}

// AllRequests makes a call on behalf of the whole batch.
const AllRequests = -1

// Batch is one batch being executed, as an instance sees it. Requests are answered in any order, each with one or
// more responses, the last of which is final.
type Batch interface {
	// Requests returns the batch's requests in the order of their rows. The batch releases them; an instance that
	// needs input bytes after the final response must retain them.
	Requests() []*infer.Request
	// BatchSize returns the sum of the requests' batch sizes.
	BatchSize() int64
	// Respond sends a response to request i and takes ownership of it. The batch sets identity, index and ownership;
	// the caller sets Outputs, Parameters, Final and Err. Responses to a request that has ended are released.
	Respond(i int, r *infer.Response)
	// Room returns a channel that can be received from when request i may send one more response: its client has read
	// enough of the earlier ones, or no longer waits. A backend that sends several responses must receive from it
	// before each but the last, in a separate goroutine per request, so that a client that does not read blocks
	// nobody else. Without this, requests fail whose clients leave too much unread.
	Room(i int) <-chan struct{}
	// Again ends request i in this batch without a final response, because the model must run it again: a later batch
	// of the instance contains it with the same inputs, the next Iteration in its Work, and neither START nor END.
	// Again must be called before Free. It reports whether the request will run again: a canceled request ends, and a
	// request fails if its configuration has no iterative_sequence.
	Again(i int) bool
	// Canceled reports whether request i was canceled. This may become true at any time.
	Canceled(i int) bool
	// OnCancel sets a function to be called, at most once and from any goroutine, when every request of the batch has
	// been canceled or had ended before. If that is already the case, it is called immediately. It is not called
	// after Done, and may itself answer requests and call Done.
	OnCancel(stop func())
	// OnCancelEach sets a function to be called, once and from any goroutine, for each request that is canceled
	// before it has ended. It is called immediately for requests that are already canceled. It must not use the
	// batch, which may be done by then.
	OnCancelEach(tell func(i int))
	// Call calls another model, or the same one, on behalf of request i, whose last response has not been sent, or of
	// [AllRequests]: see [infer.Caller]. It does not block; an instance that waits for the responses remains
	// occupied. A request's call is canceled with the request, a call of all when all requests are canceled; a
	// request that has its last response cannot make calls. A call continues after its parent has ended.
	Call(i int, c *infer.Call, receive func(*infer.Response)) (cancel func())
	// InputDone and InferDone mark the ends of the phases, once each.
	InputDone()
	InferDone()
	// Executed counts one run of the model.
	Executed()
	// GiveBack returns a batch that the instance has not started: it waits for an instance again. The reason of the
	// error says why, for example [errs.InstanceAway].
	GiveBack(err error)
	// Free says that the instance can accept its next batch, before Done: requests without a final response get
	// theirs later. Done implies Free.
	Free()
	// Done ends the batch. Requests without a final response that will not run again fail as bugs.
	Done()
}
