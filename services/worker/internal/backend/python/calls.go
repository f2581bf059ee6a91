package python

import (
	"errors"
	"fmt"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/python/stub"
)

// call makes a call of the model to another. It ends with its last result, or when the
// stub hangs up or ends.
func (s *session) call(m *stub.Message, body *tensor.Buffer) error {
	r := s.find(m.Batch)
	if r == nil || m.Asked == nil || m.Request >= len(r.ended) {
		return fmt.Errorf("the stub calls a model for batch %d, which it does not have, or for a request that is not there", m.Batch)
	}
	asked := m.Asked
	for i := range m.Tensors {
		t := &m.Tensors[i]
		data, err := s.stub.Output(t, body)
		if err != nil {
			asked.Release()
			return err
		}
		asked.Inputs = append(asked.Inputs, infer.Tensor{Name: string(t.Name), Datatype: t.Datatype, Shape: append(tensor.Shape{}, t.Shape...), Data: data})
		if err := s.checkTensor(&asked.Inputs[len(asked.Inputs)-1]); err != nil {
			asked.Release()
			return err
		}
	}
	number, request := m.Call, m.Request
	if request < 0 {
		request = backend.AllRequests
	}
	if !s.keepCall(number) {
		asked.Release()
		return fmt.Errorf("the stub makes call %d twice", number)
	}
	cancel := r.batch.Call(request, asked, func(response *infer.Response) { s.result(number, response) })
	if !s.setCancel(number, cancel) {
		cancel() // the stub has hung up or ended meanwhile
	}
	return nil
}

// keepCall notes a call. It is false if there is one of the number.
func (s *session) keepCall(number uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, there := s.calls[number]; there {
		return false
	}
	s.calls[number] = func() {}
	return true
}

// setCancel sets what cancels a call, unless it has ended.
func (s *session) setCancel(number uint64, cancel func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, there := s.calls[number]; !there {
		return false
	}
	s.calls[number] = cancel
	return true
}

// endCall forgets a call, and returns what cancels it; nil if it has ended before.
func (s *session) endCall(number uint64) (cancel func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cancel = s.calls[number]
	delete(s.calls, number)
	return cancel
}

// hangUp cancels a call.
func (s *session) hangUp(number uint64) {
	if cancel := s.endCall(number); cancel != nil {
		cancel()
	}
}

// result passes on a response to a call.
func (s *session) result(number uint64, r *infer.Response) {
	defer r.Release()
	if r.Final {
		s.endCall(number)
	}
	err := s.stub.SendResult(number, r, codeOf(r.Err))
	if err == nil || errors.Is(err, stub.ErrEnded) {
		return
	}
	failed := &infer.Response{Final: r.Final, Err: errs.Wrap(errs.ExecutionFailed, err, "%v", err)}
	_ = s.stub.SendResult(number, failed, codeOf(failed.Err)) // what fails has its end in the reader
}
