package python

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/python/stub"
)

// session is the life of one stub of an instance. Its reader's goroutine passes on what
// the stub says, and ends with it.
type session struct {
	in   *instance
	stub *stub.Stub
	// over is closed when the stub has ended and all that it had begun has failed.
	over chan struct{}
	// began and finalized take the answers to start and finalize.
	began, finalized chan stub.Message
	// asks says that the model has an is_ready, ready takes its answers.
	asks  bool
	ready chan error
	// serial says that the stub runs its batches one after another, by its own word.
	serial bool
	// question is the number of the last one; owned by attend's goroutine.
	question uint64
	metrics  stubMetrics // owned by the reader

	mu    sync.Mutex
	runs  map[uint64]*run          // batches that have not ended; guarded by mu
	line  []*run                   // those that have not been run: the stub has begun the first alone; guarded by mu
	last  uint64                   // number of a batch; guarded by mu
	calls map[uint64]*outgoingCall // those that have not ended; guarded by mu
	ended bool                     // no batch is begun any more; guarded by mu
	why   error                    // what it is killed for; guarded by mu
}

// begin starts a stub and initializes the model. An error has the reason load_failed.
func (in *instance) begin(ctx context.Context) (*session, error) {
	s, _, err := in.ask(ctx, message{Type: "start"})
	return s, err
}

// ask starts a stub with a message, and waits for the answer. An error has the reason
// load_failed.
func (in *instance) ask(ctx context.Context, first message) (*session, stub.Message, error) {
	m := in.model
	process, err := m.backend.starter.Start(m.stubSpec(in.log, in.cores))
	if err != nil {
		return nil, stub.Message{}, m.failed("%v", err)
	}
	s := &session{
		in: in, stub: process, over: make(chan struct{}), runs: make(map[uint64]*run), calls: make(map[uint64]*outgoingCall),
		began: make(chan stub.Message, 1), finalized: make(chan stub.Message, 1), ready: make(chan error, 1),
		metrics: m.backend.metrics.stub(),
	}
	go s.read()
	header, err := m.header(first, in.spec)
	if err == nil {
		err = s.stub.Send(header)
	}
	if err != nil {
		s.kill(err)
	}
	answer, err := s.answer(ctx)
	s.asks, s.serial = answer.Asks, !answer.Async
	return s, answer, err
}

// answer waits for the stub's first. That may take long, as the load of large files
// does: it is up to the caller to give up.
func (s *session) answer(ctx context.Context) (stub.Message, error) {
	slow := time.NewTicker(s.in.model.settings.timeout)
	defer slow.Stop()
	for {
		select {
		case m := <-s.began:
			if m.Type != stub.Failed {
				return m, nil
			}
			s.finalize()
			s.trace(m.Traceback)
			return m, s.in.model.failed("%s", m.Text)
		case <-s.over:
			if len(s.began) > 0 {
				continue // a stub may end at once after its answer
			}
			return stub.Message{}, s.in.model.failed("%v", s.cause())
		case <-ctx.Done():
			s.kill(ctx.Err())
			<-s.over
			return stub.Message{}, ctx.Err()
		case <-slow.C:
			s.in.log.Warn("the model is still being initialized")
		}
	}
}

// finalize has the model finalized and the stub end; if that takes too long, or the
// instance is stopped, it is killed.
func (s *session) finalize() {
	if err := s.stub.Send([]byte(`{"t":"finalize"}`)); err != nil {
		s.kill(err)
	}
	timeout := s.in.model.settings.timeout
	limit := time.AfterFunc(timeout, func() { s.kill(fmt.Errorf("it had not ended %v after it was asked to", timeout)) })
	defer limit.Stop()
	unhook := context.AfterFunc(s.in.given, func() { s.kill(errors.New("its instance was stopped")) })
	defer unhook()
	<-s.over
}

// kill ends the stub. The first reason counts.
func (s *session) kill(why error) {
	s.mu.Lock()
	if s.why == nil {
		s.why = why
	}
	s.mu.Unlock()
	s.stub.Kill()
}

// read takes the stub's messages until it ends.
func (s *session) read() {
	defer close(s.over)
	var m stub.Message
	for {
		body, err := s.stub.Receive(&m)
		if err == nil {
			err = s.take(&m, body)
			if body != nil {
				body.Release()
			}
		}
		if left(err) {
			s.end(true)
			return
		}
		if err != nil {
			s.kill(err)
			s.end(false)
			return
		}
	}
}

// left reports whether an error says no more than that the stub has closed the socket,
// with or without messages that it has not read: how it ended says why.
func left(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE)
}

// endGrace is how long a stub that has closed the socket may take to end by itself.
const endGrace = time.Second

// end ends what the stub had begun, and gives back what it had not, if all is known that
// it said.
func (s *session) end(heard bool) {
	s.in.gone(s)
	limit := time.AfterFunc(endGrace, s.stub.Kill)
	<-s.stub.Ended()
	limit.Stop()
	s.stub.Close()
	s.metrics.close()
	s.mu.Lock()
	s.ended = true
	runs := s.runs
	var waiting []*run
	if heard && len(s.line) > 1 {
		waiting = s.line[1:]
	}
	s.runs, s.line = nil, nil
	calls := s.calls
	s.calls = nil
	for _, r := range runs {
		r.stopLocked()
	}
	s.mu.Unlock()
	for _, c := range calls {
		close(c.gone)
		c.cancel()
	}
	err := s.in.unhealthy(s.cause().Error())
	for _, r := range waiting {
		delete(runs, r.number)
		r.batch.GiveBack(s.in.notBegun())
	}
	for _, r := range runs {
		r.fail(err)
		r.batch.Done()
	}
}

// cause says how the stub ended, once it has.
func (s *session) cause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.why != nil {
		return fmt.Errorf("it was killed: %w", s.why)
	}
	how, lines := s.stub.Cause()
	for i := len(lines) - 1; i >= 0; i-- {
		if last := strings.TrimSpace(lines[i]); last != "" {
			return fmt.Errorf("%s; its last line was: %s", how, last)
		}
	}
	return errors.New(how)
}

// trace logs where a model failed: as the line's stack, whose lines a log for people
// leaves as they are.
func (s *session) trace(traceback string) {
	if traceback == "" {
		return
	}
	if line := s.in.log.Check(zap.ErrorLevel, "the model failed"); line != nil {
		line.Stack = strings.TrimSuffix(traceback, "\n")
		line.Write()
	}
}

// take takes one message. An error says that it is none that a stub may send.
func (s *session) take(m *stub.Message, body *tensor.Buffer) error {
	switch m.Type {
	case stub.Ran:
		return s.ran(m, body)
	case stub.Respond:
		return s.respond(m, body)
	case stub.Log:
		s.write(m)
	case stub.Family, stub.Metric, stub.Sample, stub.Value:
		return s.meter(m)
	case stub.Started, stub.Completed, stub.Failed:
		return put(s.began, m)
	case stub.Reply:
		return s.answered(m)
	case stub.Finalized:
		return put(s.finalized, m)
	case stub.Call:
		return s.call(m, body)
	case stub.Control:
		return s.control(m, body)
	case stub.Room:
		return s.took(m.Call, m.N)
	case stub.HangUp:
		s.hangUp(m.Call)
	default:
		return fmt.Errorf("the stub sent a message of the type %q, which says nothing here", m.Type)
	}
	return nil
}

// meter takes a message about metrics, and replies where it asks for something.
func (s *session) meter(m *stub.Message) error {
	if m.Type == stub.Value {
		value, err := s.metrics.value(m.Metric)
		if err != nil {
			return err
		}
		header := strconv.AppendUint([]byte(`{"t":"reply","id":`), m.ID, 10)
		header = stub.AppendFloat(append(header, `,"value":`...), value)
		return s.stub.Send(append(header, '}'))
	}
	refused, err := s.metrics.take(m)
	switch {
	case err != nil:
		return err
	case refused != nil:
		s.reply(m.ID, false, refused)
	case m.ID != 0:
		s.reply(m.ID, true, nil)
	}
	return nil
}

// put passes on an answer, which comes once.
func put(to chan<- stub.Message, m *stub.Message) error {
	select {
	case to <- stub.Message{Type: m.Type, Text: m.Text, Traceback: m.Traceback, Config: m.Config, Asks: m.Asks, Async: m.Async}:
		return nil
	default:
		return fmt.Errorf("the stub sent %s twice", m.Type)
	}
}

// write logs what the model logs.
func (s *session) write(m *stub.Message) {
	fields := []zap.Field{zap.String("text", m.Text), zap.String("file", m.File), zap.Uint64("line", m.Line)}
	const message = "log of a model"
	switch m.Level {
	case "VERBOSE":
		s.in.log.Debug(message, fields...)
	case "WARNING":
		s.in.log.Warn(message, fields...)
	case "ERROR":
		s.in.log.Error(message, fields...)
	default:
		s.in.log.Info(message, fields...)
	}
}
