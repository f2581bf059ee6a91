package python

import (
	"fmt"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/python/stub"
)

// outputs gives a response the tensors that its request asks for, as the model has made
// them: as in Triton, those that it leaves out are left out, and a datatype or a shape
// other than the configuration's is what the client gets. An error says that a tensor
// contradicts itself.
func (r *run) outputs(response *infer.Response, list []stub.Tensor, request *infer.Request, body *tensor.Buffer) error {
	if len(list) == 0 {
		return nil
	}
	m := r.session.in.model
	response.Outputs = make([]infer.Tensor, 0, len(list))
	for k := range list {
		t := &list[k]
		data, err := r.session.stub.Output(t, body) // also of one that is not asked for: it gives the memory back
		if err != nil {
			return err
		}
		name := m.outputName(t.Name, request)
		if name == "" {
			data.Release()
			continue
		}
		response.Outputs = append(response.Outputs, infer.Tensor{Name: name, Datatype: t.Datatype, Shape: m.outputShape(name, t.Shape), Data: data})
		if err := r.session.checkTensor(&response.Outputs[len(response.Outputs)-1]); err != nil {
			return err
		}
	}
	return nil
}

// checkTensor makes sure that a tensor has the bytes that it says.
func (s *session) checkTensor(t *infer.Tensor) error {
	if t.Datatype == tensor.Bytes {
		return s.own(t)
	}
	if n, ok := t.Shape.ByteSize(t.Datatype); !ok || n != t.Data.Length {
		return contradicts(t.Data.Length, t)
	}
	return nil
}

func contradicts(n int64, t *infer.Tensor) error {
	return fmt.Errorf("tensor '%s' of the stub is %v%v in %d bytes", t.Name, t.Datatype, t.Shape, n)
}

// outputName is the name of an output that a request asks for; empty if it does not.
func (m *model) outputName(name []byte, request *infer.Request) string {
	for i := range request.Outputs {
		if string(name) == request.Outputs[i].Name {
			return request.Outputs[i].Name
		}
	}
	if len(request.Outputs) > 0 {
		return ""
	}
	outputs := m.version.Config.Outputs
	for i := range outputs {
		if string(name) == outputs[i].Name {
			return outputs[i].Name
		}
	}
	return ""
}

// own gives a tensor of texts memory that the stub cannot change any more, and checks
// it.
func (s *session) own(t *infer.Tensor) error {
	data, err := t.Data.Bytes()
	if err != nil {
		return err
	}
	if t.Data.Mapped() {
		b, err := s.in.model.backend.environment.Pool.Get(len(data))
		if err != nil {
			return err
		}
		copy(b.Bytes(), data)
		t.Data.Release()
		t.Data = tensor.InBuffer(b, 0, int64(len(data)))
		data = b.Bytes()
	}
	want, ok := t.Shape.Elements()
	if n, err := tensor.CountBytes(data, want); err != nil || !ok || n != want {
		return contradicts(int64(len(data)), t)
	}
	return nil
}
