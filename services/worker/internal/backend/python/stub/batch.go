package stub

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// ErrEnded says that a batch was not sent since the stub has ended.
var ErrEnded = errors.New("the stub has ended")

// Batch is what is to be executed.
type Batch interface {
	Requests() []*infer.Request
	// InputDone is told when the inputs have been gathered, before they are sent.
	InputDone()
}

// SendBatch sends requests to be executed. shape gives the shape of an input as the
// model sees it. An error other than ErrEnded says that the batch cannot be sent.
func (s *Stub) SendBatch(number uint64, b Batch, shape func(*infer.Tensor) tensor.Shape) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	if s.ended {
		return ErrEnded
	}
	s.header = append(s.header[:0], `{"t":"batch","batch":`...)
	s.header = strconv.AppendUint(s.header, number, 10)
	s.body, s.files, s.taken = s.body[:0], s.files[:0], s.taken[:0]
	if err := s.appendRequests(b.Requests(), shape); err != nil {
		if s.carryFiles(0) != nil || s.release(s.taken) != nil {
			return ErrEnded
		}
		return err
	}
	b.InputDone()
	if s.tellFreed(false) != nil || s.carryFiles(maxRights) != nil {
		return ErrEnded
	}
	header, fds := appendFiles(s.header, s.files)
	s.header = append(header, '}')
	if s.connection.Send(s.header, s.body, fds) != nil {
		return ErrEnded
	}
	return nil
}

func (s *Stub) appendRequests(requests []*infer.Request, shape func(*infer.Tensor) tensor.Shape) error {
	s.header = append(s.header, `,"requests":[`...)
	for i, r := range requests {
		if i > 0 {
			s.header = append(s.header, ',')
		}
		if err := s.appendRequest(r, shape); err != nil {
			return err
		}
	}
	if len(s.header) > MaxHeader-1<<16 {
		return fmt.Errorf("the requests' texts have %d bytes, more than a message may", len(s.header))
	}
	s.header = append(s.header, ']')
	return nil
}

// carryFiles sends the new files but for so many.
func (s *Stub) carryFiles(left int) error {
	for len(s.files) > left {
		n := min(len(s.files), maxRights)
		header, fds := appendFiles([]byte(`{"t":"release"`), s.files[:n])
		s.files = s.files[n:]
		if err := s.connection.Append(append(header, '}'), nil, fds); err != nil {
			return err
		}
	}
	return nil
}

// appendFiles appends the member of files, if there are any, and returns their
// descriptors.
func appendFiles(to []byte, files []outgoingFile) ([]byte, []int) {
	if len(files) == 0 {
		return to, nil
	}
	to = append(to, `,"files":[`...)
	fds := make([]int, len(files))
	for i, f := range files {
		if i > 0 {
			to = append(to, ',')
		}
		to = strconv.AppendUint(append(to, '['), f.Number, 10)
		to = strconv.AppendInt(append(to, ','), f.Size, 10)
		to = append(to, ']')
		fds[i] = f.fd
	}
	return append(to, ']'), fds
}

func (s *Stub) appendRequest(r *infer.Request, shape func(*infer.Tensor) tensor.Shape) error {
	h := append(s.header, '{')
	var members Array
	if r.ID != "" {
		h = AppendText(append(members.Next(h), `"id":`...), r.ID)
	}
	h = appendSequence(h, &members, &r.Sequence)
	if r.Timeout > 0 {
		h = strconv.AppendInt(append(members.Next(h), `"timeout":`...), r.Timeout.Microseconds(), 10)
	}
	if r.Priority > 0 {
		h = strconv.AppendUint(append(members.Next(h), `"priority":`...), r.Priority, 10)
	}
	if len(r.Parameters) > 0 {
		h = AppendParameters(append(members.Next(h), `"params":`...), r.Parameters)
	}
	if len(r.Outputs) > 0 {
		h = append(members.Next(h), `"outs":[`...)
		for i := range r.Outputs {
			if i > 0 {
				h = append(h, ',')
			}
			h = AppendText(h, r.Outputs[i].Name)
		}
		h = append(h, ']')
	}
	if r.Trace != "" {
		h = AppendText(append(members.Next(h), `"trace":`...), r.Trace)
	}
	s.header = append(members.Next(h), `"ins":[`...)
	for i := range r.Inputs {
		if i > 0 {
			s.header = append(s.header, ',')
		}
		in := &r.Inputs[i]
		if err := s.appendTensor(in, shape(in)); err != nil {
			return err
		}
	}
	s.header = append(s.header, "]}"...)
	return nil
}

func appendSequence(h []byte, members *Array, q *infer.Sequence) []byte {
	switch {
	case q.Key != "":
		h = AppendText(append(members.Next(h), `"corr":`...), q.Key)
	case q.ID != 0:
		h = strconv.AppendUint(append(members.Next(h), `"corr":`...), q.ID, 10)
	}
	flags := byte('0')
	if q.Start {
		flags |= 1
	}
	if q.End {
		flags |= 2
	}
	if flags != '0' {
		h = append(append(members.Next(h), `"flags":`...), flags)
	}
	return h
}

// appendTensor appends a tensor, and puts its bytes into the body or a slot.
func (s *Stub) appendTensor(t *infer.Tensor, shape tensor.Shape) error {
	data, err := t.Data.Bytes()
	if err != nil {
		return err
	}
	h := AppendText(append(s.header, '['), t.Name)
	h = append(append(append(h, `,"`...), t.Datatype.String()...), `",`...)
	h = append(appendShape(h, shape), ',', '[')
	if len(data) < InlineBytes {
		h = strconv.AppendInt(h, int64(len(data)), 10)
		s.body = append(s.body, data...)
	} else {
		p, err := s.inputs.take(len(data))
		if err != nil {
			return err
		}
		s.taken = append(s.taken, p.Slot)
		copy(p.mem, data)
		if p.fd >= 0 {
			s.files = append(s.files, outgoingFile{File{p.File, p.size}, p.fd})
		}
		h = strconv.AppendUint(h, p.File, 10)
		h = strconv.AppendInt(append(h, ','), p.Offset, 10)
		h = strconv.AppendInt(append(h, ','), int64(len(data)), 10)
	}
	s.header = append(h, "]]"...)
	return nil
}

// SendResult sends a response to a call. code is that of its error, if it has one.
func (s *Stub) SendResult(call uint64, r *infer.Response, code string) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	if s.ended {
		return ErrEnded
	}
	s.header = append(s.header[:0], `{"t":"result","call":`...)
	s.header = strconv.AppendUint(s.header, call, 10)
	s.body, s.files, s.taken = s.body[:0], s.files[:0], s.taken[:0]
	s.header = append(s.header, `,"final":`...)
	s.header = strconv.AppendBool(s.header, r.Final)
	if err := s.appendResponse(r, code); err != nil {
		if s.carryFiles(0) != nil || s.release(s.taken) != nil {
			return ErrEnded
		}
		return err
	}
	if s.tellFreed(false) != nil || s.carryFiles(maxRights) != nil {
		return ErrEnded
	}
	header, fds := appendFiles(s.header, s.files)
	s.header = append(header, '}')
	if s.connection.Send(s.header, s.body, fds) != nil {
		return ErrEnded
	}
	return nil
}

func (s *Stub) appendResponse(r *infer.Response, code string) error {
	if r.Err != nil {
		s.header = AppendText(append(s.header, `,"response":{"error":[`...), code)
		s.header = AppendText(append(s.header, ','), errs.Visible(r.Err).Msg)
		s.header = append(s.header, "]}"...)
		return nil //nolint:nilerr // the message has it
	}
	if r.Final && len(r.Outputs)+len(r.Parameters) == 0 {
		return nil // the end alone
	}
	s.header = append(s.header, `,"response":{"outs":[`...)
	for i := range r.Outputs {
		if i > 0 {
			s.header = append(s.header, ',')
		}
		if err := s.appendTensor(&r.Outputs[i], r.Outputs[i].Shape); err != nil {
			return err
		}
	}
	s.header = append(s.header, ']')
	if len(r.Parameters) > 0 {
		s.header = AppendParameters(append(s.header, `,"params":`...), r.Parameters)
	}
	s.header = append(s.header, '}')
	return nil
}
