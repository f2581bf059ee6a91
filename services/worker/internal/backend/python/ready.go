package python

import (
	"fmt"
	"strconv"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/python/stub"
)

// A model that has an is_ready is asked so often while it runs nothing, and has so
// long to answer.
const (
	readyPause = time.Second
	readyTime  = 5 * time.Second // Triton's
)

// attend waits until a stub has ended; false is that the instance is closed. Meanwhile
// it asks the model whether it is ready, one question at a time.
func (in *instance) attend(s *session) bool {
	var due <-chan time.Time
	var limit *time.Timer // while a question is open
	if s.asks {
		ticker := time.NewTicker(readyPause)
		defer ticker.Stop()
		due = ticker.C
		limit = s.askReady()
	}
	for {
		var late <-chan time.Time
		if limit != nil {
			late = limit.C
		}
		select {
		case <-s.over:
			return true
		case <-in.closing.Done():
			return false
		case <-due:
			if limit == nil && !s.busy() {
				limit = s.askReady()
			}
		case cause := <-s.ready:
			if limit != nil {
				limit.Stop()
				limit = nil
			}
			in.setReady(s, cause)
		case <-late:
			if limit.Reset(readyTime); !s.busy() { // else it may wait for execute to return
				in.setReady(s, in.model.unready("Timed out waiting for user-defined is_ready() response"))
			}
		}
	}
}

// askReady asks the model whether it is ready; the answer comes by s.ready. It returns
// what goes off when that has taken too long.
func (s *session) askReady() *time.Timer {
	s.question++
	header := strconv.AppendUint([]byte(`{"t":"ready","id":`), s.question, 10)
	_ = s.stub.Send(append(header, '}')) // what fails has its end in the reader
	return time.NewTimer(readyTime)
}

// busy reports whether the stub has a batch.
func (s *session) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.runs) > 0
}

// answered takes the answer of a model that was asked whether it is ready.
func (s *session) answered(m *stub.Message) error {
	var cause error
	switch {
	case m.Error.Code != "":
		cause = s.in.model.unready("%s", m.Error.Text)
	case !m.Flag:
		cause = s.in.model.unready("is_ready() of instance %s returned False", s.in.spec.Name)
	}
	select {
	case s.ready <- cause:
		return nil
	default:
		return fmt.Errorf("the stub replies to %d, which it was not asked", m.ID)
	}
}

func (m *model) unready(format string, args ...any) error {
	return errs.New(errs.ModelNotReady, format, args...).WithModel(m.version.Ref.Name)
}

// setReady sets whether the model of the stub is ready, by its own word.
func (in *instance) setReady(s *session, cause error) {
	in.telling.Lock()
	defer in.telling.Unlock()
	in.mu.Lock()
	changed := in.live == s && causeText(in.condition.Unready) != causeText(cause)
	if changed {
		in.condition.Unready = cause
	}
	tell, c := in.tell, in.condition
	in.mu.Unlock()
	if changed && tell != nil {
		tell(c)
	}
}

func causeText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
