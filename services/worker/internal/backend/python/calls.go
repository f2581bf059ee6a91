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

// What a call may have of results that the model has not taken, before the called model
// has to wait: so many, or the one that makes it so many bytes.
const (
	untakenResults = 32
	untakenBytes   = 16 << 20
)

// outgoingCall is a call that has not ended. Its results come from one goroutine.
type outgoingCall struct {
	cancel func()        // guarded by the session's mu
	gone   chan struct{} // closed when it has ended
	room   chan struct{} // holds one when results were taken

	untaken []int64 // bytes of each result that the model has not taken; guarded by the session's mu
	bytes   int64   // in untaken; guarded by the session's mu
}

// keepCall notes a call. It is false if there is one of the number.
func (s *session) keepCall(number uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls[number] != nil {
		return false
	}
	s.calls[number] = &outgoingCall{cancel: func() {}, gone: make(chan struct{}), room: make(chan struct{}, 1)}
	return true
}

// setCancel sets what cancels a call, unless it has ended.
func (s *session) setCancel(number uint64, cancel func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.calls[number]
	if c == nil {
		return false
	}
	c.cancel = cancel
	return true
}

// endCall forgets a call, and returns what cancels it; nil if it has ended before.
func (s *session) endCall(number uint64) (cancel func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.calls[number]
	if c == nil {
		return nil
	}
	delete(s.calls, number)
	close(c.gone)
	return c.cancel
}

// awaitRoom waits until the model has taken enough of a call's results for one of so
// many bytes. It is false if the call has ended.
func (s *session) awaitRoom(number uint64, n int64) bool {
	for {
		s.mu.Lock()
		c := s.calls[number]
		fits := c != nil && len(c.untaken) < untakenResults && c.bytes < untakenBytes
		if fits {
			c.untaken, c.bytes = append(c.untaken, n), c.bytes+n
		}
		s.mu.Unlock()
		if fits || c == nil {
			return fits
		}
		select {
		case <-c.room:
		case <-c.gone:
			return false
		}
	}
}

// took takes notice of n results of a call that the model has taken.
func (s *session) took(number uint64, n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.calls[number]
	if c == nil {
		return nil // the last result is on its way
	}
	if n > len(c.untaken) {
		return fmt.Errorf("the stub took %d results of call %d, which has %d", n, number, len(c.untaken))
	}
	for _, bytes := range c.untaken[:n] {
		c.bytes -= bytes
	}
	c.untaken = append(c.untaken[:0], c.untaken[n:]...)
	select {
	case c.room <- struct{}{}:
	default:
	}
	return nil
}

// hangUp cancels a call.
func (s *session) hangUp(number uint64) {
	if cancel := s.endCall(number); cancel != nil {
		cancel()
	}
}

// result passes on a response to a call, when there is room for it.
func (s *session) result(number uint64, r *infer.Response) {
	defer r.Release()
	n := int64(0)
	for i := range r.Outputs {
		n += r.Outputs[i].Data.Length
	}
	if !s.awaitRoom(number, n) {
		return
	}
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
