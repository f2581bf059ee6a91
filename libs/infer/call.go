package infer

import (
	"time"

	"github.com/nereid-serving/nereid/libs/mono"
)

// Call is an inference that a model requests while it runs.
type Call struct {
	// Model and Version are as the caller names them; an empty version leaves the
	// choice to the model's version policy.
	Model, Version string
	// Single says that the caller takes one response: a call of a decoupled model is
	// refused.
	Single bool
	// ID, Inputs, Outputs, Parameters, Sequence, Priority, Timeout and Trace are those
	// of a [Request].
	ID         string
	Inputs     []Tensor
	Outputs    []Output
	Parameters []Parameter
	Sequence   Sequence
	Priority   uint64
	Timeout    time.Duration
	Trace      string

	// Parent is what waits for the call. It and what follows are set by its worker.
	Parent            Parent
	Tenant, CostClass string
	Share             Share
	// Deadline is the time after which nobody waits for the parent; 0 is never.
	Deadline mono.Time
}

// Release releases the bytes of all inputs. The owner of the call calls it once.
func (c *Call) Release() {
	for i := range c.Inputs {
		c.Inputs[i].Data.Release()
	}
}

// Parent is what a call belongs to. The zero value is that of a request of a client,
// and of a call that an instance makes before it is open.
type Parent struct {
	// Batch runs on an instance, or has units with responses to come.
	Batch BatchID
	// Unit is the unit that has made the call if Alone, and otherwise the first of the
	// batch, which has made it as a whole.
	Unit  Unit
	Alone bool
}

// Caller accepts calls of models to other models, or to themselves. It is safe for concurrent
// use.
type Caller interface {
	// Call makes a call and takes ownership of it and its inputs. receive takes ownership of
	// its responses, one after another: the next comes when receive has returned, which limits
	// the rate of a model with many responses. Exactly one is final, an error among them, and
	// it may come before Call returns. Calls that are made one after another are submitted in
	// that order. The function that Call returns cancels the call, and does nothing when it has
	// ended; it does not block, and may be called from any goroutine.
	Call(c *Call, receive func(*Response)) (cancel func())
}
