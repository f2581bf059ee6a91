package client

import (
	"encoding/json"
	"fmt"
)

// The JSON of the protocol, as far as the client writes or reads it.
type (
	wireMetadata struct {
		Name     string            `json:"name"`
		Versions []string          `json:"versions"`
		Platform string            `json:"platform"`
		Inputs   []wireDescription `json:"inputs"`
		Outputs  []wireDescription `json:"outputs"`
	}
	wireDescription struct {
		Name       string         `json:"name"`
		Datatype   string         `json:"datatype,omitempty"`
		Shape      []int64        `json:"shape,omitempty"`
		Parameters wireParameters `json:"parameters"`
	}
	wireParameters struct {
		Size *int `json:"binary_data_size,omitempty"`
	}
	wireRequest struct {
		ID         string          `json:"id,omitempty"`
		Inputs     []wireInput     `json:"inputs"`
		Outputs    []wireOutput    `json:"outputs,omitempty"`
		Parameters map[string]bool `json:"parameters"`
	}
	wireInput struct {
		Name       string         `json:"name"`
		Datatype   string         `json:"datatype"`
		Shape      []int64        `json:"shape"`
		Parameters wireParameters `json:"parameters"`
	}
	wireOutput struct {
		Name       string          `json:"name"`
		Parameters map[string]bool `json:"parameters"`
	}
	wireResponse struct {
		Model   string            `json:"model_name"`
		Version string            `json:"model_version"`
		ID      string            `json:"id"`
		Outputs []wireDescription `json:"outputs"`
	}
)

func (w *wireMetadata) metadata() (*Metadata, error) {
	inputs, err := descriptions(w.Inputs)
	if err != nil {
		return nil, err
	}
	outputs, err := descriptions(w.Outputs)
	if err != nil {
		return nil, err
	}
	return &Metadata{Name: w.Name, Versions: w.Versions, Platform: w.Platform, Inputs: inputs, Outputs: outputs}, nil
}

func descriptions(wire []wireDescription) ([]Description, error) {
	list := make([]Description, len(wire))
	for i, w := range wire {
		var err error
		if list[i], err = describe(w.Name, w.Datatype, w.Shape); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// encode returns a request's body, and how many of its bytes are JSON. The
// tensors follow.
func encode(r *Request) (body []byte, header int, err error) {
	wire := wireRequest{ID: r.ID, Inputs: make([]wireInput, len(r.Inputs)), Parameters: map[string]bool{"binary_data_output": true}}
	size := 0
	for i, t := range r.Inputs {
		n := len(t.Data)
		shape := append([]int64{}, t.Shape...) // a scalar's is [], never null
		wire.Inputs[i] = wireInput{Name: t.Name, Datatype: t.Datatype.String(), Shape: shape, Parameters: wireParameters{Size: &n}}
		size += n
	}
	for _, name := range r.Outputs {
		wire.Outputs = append(wire.Outputs, wireOutput{Name: name, Parameters: map[string]bool{"binary_data": true}})
	}
	head, err := json.Marshal(wire)
	if err != nil {
		return nil, 0, fmt.Errorf("write a request: %w", err)
	}
	body = append(make([]byte, 0, len(head)+size), head...)
	for _, t := range r.Inputs {
		body = append(body, t.Data...)
	}
	return body, len(head), nil
}

// decode reads a response whose first length bytes are JSON. The tensors share
// its bytes.
func decode(content []byte, length int) (*Response, error) {
	if length < 0 || length > len(content) {
		return nil, fmt.Errorf("the response has %d bytes, and its header says that %d of them are JSON", len(content), length)
	}
	var wire wireResponse
	if err := json.Unmarshal(content[:length], &wire); err != nil {
		return nil, fmt.Errorf("read the response: %w", err)
	}
	response := &Response{Model: wire.Model, Version: wire.Version, ID: wire.ID, Outputs: make([]Tensor, len(wire.Outputs))}
	rest := content[length:]
	for i, w := range wire.Outputs {
		size := w.Parameters.Size
		if size == nil || *size < 0 || *size > len(rest) {
			return nil, fmt.Errorf("output %q is not the binary tensor that was asked for", w.Name)
		}
		about, err := describe(w.Name, w.Datatype, w.Shape)
		if err != nil {
			return nil, err
		}
		response.Outputs[i] = Tensor{Description: about, Data: rest[:*size:*size]}
		rest = rest[*size:]
	}
	return response, nil
}
