package python

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/python/stub"
)

// firstRoom is how many responses a sender may give before it is told of room.
const firstRoom = 32

// run is a batch that a stub has. Responses are given by the session's reader alone.
type run struct {
	session *session
	number  uint64
	batch   backend.Batch
	limit   *time.Timer // from the time on when nobody waits; guarded by the session's mu
	unheard bool        // nobody waits; guarded by the session's mu

	// Owned by the reader.
	left     int    // requests without an end
	ended    []bool // by request
	returned bool   // execute has returned

	flows []flow // by request; nil until there are several responses; guarded by the session's mu
}

// flow is how many responses a sender may give.
type flow struct {
	given   int  // since it was told of room
	waiting bool // a goroutine waits for room
}

// execute gives the stub a batch. It is false if the stub has ended before.
func (s *session) execute(b backend.Batch) bool {
	n := len(b.Requests())
	r := &run{session: s, batch: b, left: n, ended: make([]bool, n)}
	if !s.keep(r) {
		return false
	}
	err := s.stub.SendBatch(r.number, b, s.in.model.inputShape)
	if err != nil && s.forget(r) { // else the reader has failed it
		if errors.Is(err, stub.ErrEnded) {
			return false
		}
		s.in.refuse(b, errs.Wrap(errs.ExecutionFailed, err, "%v", err).WithModel(s.in.model.version.Ref.Name))
	}
	b.OnCancelEach(func(i int) { s.sendCancel(r.number, i) })
	b.OnCancel(r.cancel)
	return true
}

// keep takes a batch up, unless the stub has ended.
func (s *session) keep(r *run) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	s.last++
	r.number = s.last
	s.runs[r.number] = r
	s.line = append(s.line, r)
	return true
}

// forget gives a batch up. It is false if that was done before.
func (s *session) forget(r *run) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.runs[r.number] != r {
		return false
	}
	delete(s.runs, r.number)
	s.advanceLocked(r)
	r.stopLocked()
	return true
}

// advance takes in that the stub has run a batch, and begins the next. It is false if
// that batch was not its turn.
func (s *session) advance(r *run) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.line) == 0 || s.line[0] != r {
		return false
	}
	s.advanceLocked(r)
	return true
}

// advanceLocked takes a batch from the line, if it is there.
func (s *session) advanceLocked(r *run) {
	at := slices.Index(s.line, r)
	if at < 0 {
		return
	}
	s.line = slices.Delete(s.line, at, at+1)
	if at == 0 && len(s.line) > 0 {
		s.line[0].boundLocked()
	}
}

func (r *run) stopLocked() {
	if r.limit != nil {
		r.limit.Stop()
	}
}

func (s *session) find(number uint64) *run {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs[number]
}

// cancel bounds the batch, since nobody waits for it, as the stub has been told of each
// request. One that does not end then takes too long for everybody else.
func (r *run) cancel() {
	s := r.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.runs[r.number] != r {
		return
	}
	if r.unheard = true; !slices.Contains(s.line, r) || s.line[0] == r {
		r.boundLocked()
	}
}

// boundLocked bounds a batch that has begun, if nobody waits for it.
func (r *run) boundLocked() {
	if !r.unheard || r.limit != nil {
		return
	}
	s := r.session
	timeout := s.in.model.settings.timeout
	r.limit = time.AfterFunc(timeout, func() {
		s.kill(fmt.Errorf("it went on with a batch for %v after all of its requests were canceled", timeout))
	})
}

// sendCancel tells the stub that a request was canceled. What fails here has its end
// in the reader.
func (s *session) sendCancel(batch uint64, request int) {
	header := strconv.AppendUint([]byte(`{"t":"cancel","batch":`), batch, 10)
	header = strconv.AppendInt(append(header, `,"requests":[`...), int64(request), 10)
	_ = s.stub.Send(append(header, "]}"...))
}

// ran takes the end of execute.
func (s *session) ran(m *stub.Message, body *tensor.Buffer) error {
	r := s.find(m.Batch)
	if r == nil || !s.advance(r) {
		return fmt.Errorf("the stub has run batch %d, which it does not have or whose turn it is not", m.Batch)
	}
	r.returned = true
	if m.Error.Code != canceled { // else the model was not called
		r.batch.Executed()
	}
	r.batch.InferDone()
	s.trace(m.Traceback)
	for i := range m.Responses {
		if err := r.give(m, &m.Responses[i], body); err != nil {
			return err
		}
	}
	for _, i := range m.Again {
		if i >= len(r.ended) || r.ended[i] {
			return fmt.Errorf("the stub has request %d of a batch of %d run again, which is not there or has ended", i, len(r.ended))
		}
		r.end(i)
		r.batch.Again(i)
	}
	if m.Error.Code != "" {
		r.fail(s.in.model.failure(m.Error))
	}
	if !r.done() {
		r.batch.Free()
	}
	return nil
}

// respond takes a response of a sender.
func (s *session) respond(m *stub.Message, body *tensor.Buffer) error {
	r := s.find(m.Batch)
	if r == nil {
		return fmt.Errorf("the stub responds to batch %d, which it does not have", m.Batch)
	}
	if err := r.give(m, &m.Responses[0], body); err != nil {
		return err
	}
	if i := m.Request; !r.ended[i] {
		if err := r.flow(i); err != nil {
			return err
		}
	}
	r.done()
	return nil
}

// done ends the batch if execute has returned and all requests have ended.
func (r *run) done() bool {
	if !r.returned || r.left > 0 || !r.session.forget(r) {
		return false
	}
	r.batch.Done()
	return true
}

// fail ends what has no end with an error.
func (r *run) fail(err error) {
	for i := range r.ended {
		if !r.ended[i] {
			r.end(i)
			r.batch.Respond(i, &infer.Response{Final: true, Err: err})
		}
	}
}

func (r *run) end(i int) {
	r.ended[i] = true
	r.left--
}

// give gives a request a response.
func (r *run) give(m *stub.Message, from *stub.Response, body *tensor.Buffer) error {
	i := from.Position
	if i < 0 || i >= len(r.ended) || r.ended[i] {
		return fmt.Errorf("the stub responds to request %d of a batch of %d, which is not there or has ended", i, len(r.ended))
	}
	response := &infer.Response{Final: from.Final, Parameters: from.Parameters}
	if from.Error.Code != "" {
		response.Err = r.session.in.model.failure(from.Error)
	} else if err := r.outputs(response, m.Tensors[from.From:from.To], r.batch.Requests()[i], body); err != nil {
		response.Release()
		return err
	}
	if from.Final {
		r.end(i)
	}
	if !from.None || from.Final {
		r.batch.Respond(i, response)
	}
	return nil
}

// flow counts a response, and tells the sender of room when the client has read.
func (r *run) flow(i int) error {
	s := r.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.flows == nil {
		r.flows = make([]flow, len(r.ended))
	}
	f := &r.flows[i]
	if f.given++; f.given > firstRoom {
		return fmt.Errorf("the stub gave request %d more responses than it had room for", i)
	}
	if f.given < firstRoom/2 || f.waiting {
		return nil
	}
	f.waiting = true
	room := r.batch.Room(i)
	select {
	case <-room:
		r.tellRoomLocked(i)
	default:
		go func() { // ends when the client reads, or the request or the batch ends
			<-room
			s.mu.Lock()
			defer s.mu.Unlock()
			r.tellRoomLocked(i)
		}()
	}
	return nil
}

func (r *run) tellRoomLocked(i int) {
	f := &r.flows[i]
	header := strconv.AppendUint([]byte(`{"t":"room","batch":`), r.number, 10)
	header = strconv.AppendInt(append(header, `,"request":`...), int64(i), 10)
	header = strconv.AppendInt(append(header, `,"n":`...), int64(f.given), 10)
	f.given, f.waiting = 0, false
	_ = r.session.stub.Send(append(header, '}')) // what fails has its end in the reader
}
