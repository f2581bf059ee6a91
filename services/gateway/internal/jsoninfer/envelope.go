package jsoninfer

import (
	"github.com/nereid-serving/nereid/services/gateway/internal/classify"
	"github.com/nereid-serving/nereid/services/gateway/internal/regions"
)

// Envelope is what a request's JSON says about the form of its tensors.
type Envelope struct {
	// Binary lists the inputs whose bytes follow the JSON, in their order.
	Binary []BinaryInput
	// BinaryOutputs is the form of outputs that the request does not name.
	BinaryOutputs bool
	// Outputs are the outputs that the request names.
	Outputs []OutputForm
	// Classes are the outputs for which the request wants classes instead of values.
	Classes []classify.Output
	// SharedInputs and SharedOutputs are the tensors in regions of the client's memory.
	SharedInputs  []regions.Input
	SharedOutputs []regions.Output
}

// BinaryInput is an input whose bytes are not in the JSON.
type BinaryInput struct {
	// Index is the input's position in the request.
	Index int
	// Size is in bytes. It has not been checked.
	Size uint64
}

// OutputForm says how to send an output.
type OutputForm struct {
	Name   string
	Binary bool
	// Shared says that the response contains no data of the output.
	Shared bool
}

// Reset empties e for another request, retaining its memory.
func (e *Envelope) Reset() {
	*e = Envelope{Binary: e.Binary[:0], Outputs: e.Outputs[:0], Classes: e.Classes[:0]}
}

// form returns how to send the output with a name.
func (e *Envelope) form(name string) OutputForm {
	for i := range e.Outputs {
		if e.Outputs[i].Name == name {
			return e.Outputs[i]
		}
	}
	return OutputForm{Name: name, Binary: e.BinaryOutputs}
}

// BinaryOutput reports whether the output with a name is to be sent as bytes.
func (e *Envelope) BinaryOutput(name string) bool { return e.form(name).Binary }
