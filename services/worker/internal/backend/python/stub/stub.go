package stub

import (
	"strconv"
	"sync"

	"github.com/nereid-serving/nereid/libs/tensor"
)

// Stub is a stub process and what is shared with it. Its methods are safe for
// concurrent use but for Receive.
type Stub struct {
	*Process
	connection *Connection
	outputs    incoming

	// sending is held while inputs are written, and while their memory ends.
	sending sync.Mutex
	inputs  outgoing // guarded by sending, for writing
	ended   bool     // guarded by sending
	header  []byte   // of the batch being sent; guarded by sending
	body    []byte   // the same
	files   []outgoingFile
	taken   []Slot
}

type outgoingFile struct {
	File
	fd int
}

// Close ends the connection and gives up the memory, but for outputs in use. The
// process has ended, and Receive has returned its error.
func (s *Stub) Close() {
	_ = s.connection.Close() // the process is gone
	s.connection.Drop()
	s.sending.Lock()
	defer s.sending.Unlock()
	s.ended = true
	s.inputs.close()
	s.outputs.close()
}

// Send sends a message without tensors.
func (s *Stub) Send(header []byte) error {
	if err := s.tellFreed(false); err != nil {
		return err
	}
	return s.connection.Send(header, nil, nil)
}

// tellFreed tells the stub which outputs have been given up.
func (s *Stub) tellFreed(now bool) error {
	freed := s.outputs.freedSlots(nil)
	if len(freed) == 0 {
		return nil
	}
	header := append(make([]byte, 0, 64), `{"t":"release","slots":[`...)
	var list Array
	for _, f := range freed {
		header = strconv.AppendUint(append(list.Next(header), '['), f.File, 10)
		header = strconv.AppendInt(append(header, ','), f.Offset, 10)
		header = append(header, ']')
	}
	header = append(header, "]}"...)
	if now {
		return s.connection.Send(header, nil, nil)
	}
	return s.connection.Append(header, nil, nil)
}

// Receive waits for the next message, and sees to those about memory. The body is the
// caller's to release; nil if there is none.
func (s *Stub) Receive(m *Message) (*tensor.Buffer, error) {
	for {
		f, err := s.connection.Receive()
		if err != nil {
			return nil, err
		}
		if err := s.accept(m, f); err != nil {
			if f.Body != nil {
				f.Body.Release()
			}
			return nil, err
		}
		if m.Type != Release && m.Type != Drop {
			return f.Body, nil
		}
		if f.Body != nil {
			f.Body.Release()
		}
	}
}

func (s *Stub) accept(m *Message, f Frame) error {
	if err := m.Parse(f.Header); err != nil {
		closeAll(f.Files)
		return err
	}
	if len(m.Files)+len(f.Files) > 0 {
		if err := s.outputs.add(m.Files, f.Files); err != nil {
			return err
		}
	}
	bodyBytes := int64(0)
	if f.Body != nil {
		bodyBytes = int64(f.Body.Len())
	}
	if err := m.placeTensors(bodyBytes); err != nil {
		return err
	}
	switch m.Type {
	case Release:
		return s.release(m.Slots)
	case Drop:
		return s.outputs.drop(m.Dropped)
	}
	return nil
}

// release takes back memory of inputs.
func (s *Stub) release(slots []Slot) error {
	dropped, err := s.inputs.release(slots)
	if err != nil || len(dropped) == 0 {
		return err
	}
	header := append(make([]byte, 0, 64), `{"t":"drop","files":[`...)
	var list Array
	for _, file := range dropped {
		header = strconv.AppendUint(list.Next(header), file, 10)
	}
	return s.connection.Send(append(header, "]}"...), nil, nil)
}

// Output takes a reference to the bytes of a tensor of a message with that body.
func (s *Stub) Output(t *Tensor, body *tensor.Buffer) (tensor.Ref, error) {
	switch {
	case t.Length == 0:
		return tensor.Ref{}, nil
	case t.InBody:
		return tensor.InBuffer(body.Retain(), t.Offset, t.Length), nil
	}
	return s.outputs.take(t.File, t.Offset, t.Length, s.freed)
}

// freed tells the stub of outputs that were given up. What fails here has its end in
// Receive.
func (s *Stub) freed() { _ = s.tellFreed(true) }
