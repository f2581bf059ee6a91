package client

import (
	"encoding/json"
	"fmt"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
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
		ID         string         `json:"id,omitempty"`
		Inputs     []wireInput    `json:"inputs"`
		Outputs    []wireOutput   `json:"outputs,omitempty"`
		Parameters map[string]any `json:"parameters"`
	}
	wireInput struct {
		Name       string         `json:"name"`
		Datatype   string         `json:"datatype"`
		Shape      []int64        `json:"shape"`
		Parameters map[string]any `json:"parameters"`
	}
	wireOutput struct {
		Name       string         `json:"name"`
		Parameters map[string]any `json:"parameters"`
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

// EncodeHTTP returns the path and the body over HTTP of a request that has the raw contents of all its
// inputs, or of none where they lie in shared memory, and how many bytes of the body are JSON. The last
// member of the JSON is "parameters", which is not empty, and the tensors follow it.
func EncodeHTTP(m *inference.ModelInferRequest) (path string, body []byte, header int, err error) {
	raw := m.GetRawInputContents()
	if len(raw) > 0 && len(raw) != len(m.GetInputs()) {
		return "", nil, 0, fmt.Errorf("the request has %d inputs and the contents of %d", len(m.GetInputs()), len(raw))
	}
	wire := wireRequest{ID: m.GetId(), Inputs: make([]wireInput, len(m.GetInputs())), Parameters: parameters(m.GetParameters())}
	wire.Parameters["binary_data_output"] = true
	size := 0
	for i, in := range m.GetInputs() {
		shape := append([]int64{}, in.GetShape()...) // a scalar's is [], never null
		wire.Inputs[i] = wireInput{Name: in.GetName(), Datatype: in.GetDatatype(), Shape: shape, Parameters: parameters(in.GetParameters())}
		if len(raw) > 0 {
			wire.Inputs[i].Parameters["binary_data_size"] = len(raw[i])
			size += len(raw[i])
		}
	}
	for _, out := range m.GetOutputs() {
		of := parameters(out.GetParameters())
		if of["shared_memory_region"] == nil {
			of["binary_data"] = true
		}
		wire.Outputs = append(wire.Outputs, wireOutput{Name: out.GetName(), Parameters: of})
	}
	head, err := json.Marshal(wire)
	if err != nil {
		return "", nil, 0, fmt.Errorf("write a request: %w", err)
	}
	body = append(make([]byte, 0, len(head)+size), head...)
	for _, data := range raw {
		body = append(body, data...)
	}
	return modelPath(m.GetModelName(), m.GetModelVersion()) + "/infer", body, len(head), nil
}

func parameters(from map[string]*inference.InferParameter) map[string]any {
	to := make(map[string]any, len(from)+1)
	for name, p := range from {
		switch v := p.GetParameterChoice().(type) {
		case *inference.InferParameter_BoolParam:
			to[name] = v.BoolParam
		case *inference.InferParameter_Int64Param:
			to[name] = v.Int64Param
		case *inference.InferParameter_Uint64Param:
			to[name] = v.Uint64Param
		case *inference.InferParameter_DoubleParam:
			to[name] = v.DoubleParam
		case *inference.InferParameter_StringParam:
			to[name] = v.StringParam
		}
	}
	return to
}

// DecodeHTTP reads the body of a response over HTTP, whose first length bytes are JSON. The
// tensors share its bytes.
func DecodeHTTP(content []byte, length int) (*Response, error) {
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
