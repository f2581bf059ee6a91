package bus

import (
	"fmt"
	"sync"

	"go.uber.org/zap"
)

// serverLog writes the embedded server's log to zap, notices as debug, and keeps
// the first fatal line: the server reports there why it did not start.
type serverLog struct {
	log *zap.Logger

	mu    sync.Mutex
	cause error // guarded by mu
}

func (s *serverLog) fatal() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// Noticef logs what the server does.
func (s *serverLog) Noticef(format string, v ...any) {
	s.log.Debug("embedded nats notice", zap.String("detail", fmt.Sprintf(format, v...)))
}

// Warnf logs what degrades the server.
func (s *serverLog) Warnf(format string, v ...any) {
	s.log.Warn("embedded nats warning", zap.String("detail", fmt.Sprintf(format, v...)))
}

// Errorf logs what fails inside the server.
func (s *serverLog) Errorf(format string, v ...any) {
	s.log.Error("embedded nats error", zap.String("detail", fmt.Sprintf(format, v...)))
}

// Fatalf keeps the cause; the caller of the server's start returns it.
func (s *serverLog) Fatalf(format string, v ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause == nil {
		s.cause = fmt.Errorf(format, v...)
	}
}

// Debugf is never called: the server's debug log is off.
func (s *serverLog) Debugf(string, ...any) {}

// Tracef is never called: the server's trace log is off.
func (s *serverLog) Tracef(string, ...any) {}
