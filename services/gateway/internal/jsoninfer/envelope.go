package jsoninfer

import (
	"github.com/nereid-serving/nereid/services/gateway/internal/classify"
	"github.com/nereid-serving/nereid/services/gateway/internal/regions"
)

// Envelope is what a request's JSON says about the form of the tensors.
type Envelope struct {
	// Binary lists the inputs whose bytes follow the JSON, in their order.
	Binary []BinaryInput
	// BinaryOutputs is the form of outputs that the request does not name.
	BinaryOutputs bool
	// Outputs are those that the request names.
	Outputs []OutputForm
	// Classes are the outputs of which it wants classes in place of values.
	Classes []classify.Output
	// SharedInputs and SharedOutputs are those in regions of the client's memory.
	SharedInputs  []regions.Input
	SharedOutputs []regions.Output
}

// BinaryInput is an input whose bytes are not in the JSON.
type BinaryInput struct {
	// Index is that of the request's input.
	Index int
	// Size is in bytes. Nothing has been checked about it.
	Size uint64
}

// OutputForm says how an output is to be sent.
type OutputForm struct {
	Name   string
	Binary bool
	// Shared says that the response has no data of it.
	Shared bool
}

// Reset empties e for another request and keeps its memory.
func (e *Envelope) Reset() {
	*e = Envelope{Binary: e.Binary[:0], Outputs: e.Outputs[:0], Classes: e.Classes[:0]}
}

// form is how the output of that name is to be sent.
func (e *Envelope) form(name string) OutputForm {
	for i := range e.Outputs {
		if e.Outputs[i].Name == name {
			return e.Outputs[i]
		}
	}
	return OutputForm{Name: name, Binary: e.BinaryOutputs}
}

// BinaryOutput reports whether the output of that name is to be sent as bytes.
func (e *Envelope) BinaryOutput(name string) bool { return e.form(name).Binary }
