package transport

import (
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
)

// progress is how many bytes a call must receive or send within the timeout while it waits for its client,
// unless the rest of the message is smaller.
const progress = 64 << 10

// checks is how often the calls of a connection are checked within the timeout. A call without progress is
// reset after the timeout, at most one check late.
const checks = 4

// resetChecks is the number of checks within which gRPC should reset a call. A connection where that takes
// longer is stuck: its reader or writer waits for the client.
const resetChecks = 2

// meter measures the progress of one direction of a call.
type meter struct {
	bytes int64 // since the last progress
	still int   // checks without progress
	moved bool  // since the last check
}

func (m *meter) add(n int64) {
	if m.bytes += n; m.bytes >= progress {
		m.bytes, m.moved = 0, true
	}
}

// stalls counts a check of a direction that waits for the client, and reports whether it has taken too long.
func (m *meter) stalls() bool {
	if m.moved {
		m.moved, m.still = false, 0
		return false
	}
	m.still++
	return m.still > checks
}

// check resets the calls whose client makes no progress.
func (c *Connection) check() {
	if cause := c.checked(); cause != nil {
		c.fail(cause)
	}
}

// checked does the work of check. It returns why the connection must be closed, or nil.
func (c *Connection) checked() *errs.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(c.streams) == 0 {
		c.timer, c.stuck = nil, 0
		return nil
	}
	timeout := c.all.options.StallTimeout
	if at := c.position.Load(); at&1 == 1 && at == c.at {
		if c.stuck++; c.stuck > checks {
			return errs.New(errs.BodyStalled, "a frame stopped halfway, and for %v the connection has received no more of it", timeout)
		}
	} else {
		c.at, c.stuck = at, 0
	}
	for _, s := range c.streams {
		if s.cause != nil {
			if s.resetFor++; s.resetFor > resetChecks {
				return s.cause
			}
			continue
		}
		if cause := s.stalls(timeout); cause != nil {
			c.resetLocked(s, cause)
		}
	}
	c.timer.Reset(timeout / checks)
	return nil
}

// stalls counts a check of the call. It returns why the call must be reset, or nil.
func (s *Stream) stalls(timeout time.Duration) *errs.Error {
	waits := s.waits.Load()
	if waits == waitOnly || waits == waitNext && s.unread.bytes > 0 {
		if s.in.stalls() {
			return errs.New(errs.BodyStalled, "the message came too slowly: for %v there was neither the rest of it nor %d bytes", timeout, progress)
		}
	} else {
		s.in.still = 0
	}
	if len(s.outgoing) > 0 && s.out.stalls() {
		return errs.New(errs.ResponseStalled, "the client read too little of a response: for %v neither the rest of it nor %d bytes", timeout, progress)
	}
	return nil
}
