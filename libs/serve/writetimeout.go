package serve

import (
	"errors"
	"math"
	"net"
	"os"
	"sync/atomic"
	"time"
)

// writeProgress is how many bytes of a large write a peer reads within the timeout.
const writeProgress = 64 << 10

// WithWriteTimeout bounds the writes on the connections of l: a write of which the peer reads
// neither the rest nor 64 KiB within timeout, or up to a quarter more, closes its
// connection. It is for servers that set no write deadlines of their own: gRPC's reader
// does not learn of a failed write, and that of net/http knows no progress.
func WithWriteTimeout(l net.Listener, timeout time.Duration) net.Listener {
	return &timeoutListener{Listener: l, timeout: timeout, start: time.Now()}
}

type timeoutListener struct {
	net.Listener
	timeout time.Duration
	start   time.Time
}

// Accept waits for the next connection.
func (l *timeoutListener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &timeoutConn{Conn: raw, l: l}, nil
}

// timeoutConn moves its write deadline with its writes, in steps: setting a deadline
// costs more than a small write on a busy connection. A deadline that passes while
// nothing is written does no harm.
type timeoutConn struct {
	net.Conn
	l   *timeoutListener
	set atomic.Int64 // when the deadline was set, since l.start, in nanoseconds; 0 is never
}

// NetConn returns the connection whose writes are bounded.
func (c *timeoutConn) NetConn() net.Conn { return c.Conn }

// The deadline is a quarter of the timeout ahead when it is set, and moves after an eighth. A
// write goes on after it: the kernel wakes a writer only once a good part of its buffer
// is free, but has room before that.
const (
	deadlinePart = 4
	movePart     = 8
)

// callers marks a connection whose deadlines are its caller's.
const callers = math.MaxInt64

// Write sends p, or closes the connection.
func (c *timeoutConn) Write(p []byte) (n int, err error) {
	progressed, read := time.Since(c.l.start), 0
	now := progressed
	for {
		if last := c.set.Load(); last == 0 || now-time.Duration(last) > c.l.timeout/movePart {
			if err := c.Conn.SetWriteDeadline(c.l.start.Add(now + c.l.timeout/deadlinePart)); err != nil {
				return n, err
			}
			c.set.Store(int64(max(now, 1)))
		}
		more, err := c.Conn.Write(p[n:])
		if n += more; err == nil {
			return n, nil
		}
		if now = time.Since(c.l.start); n-read >= writeProgress {
			progressed, read = now, n
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || c.set.Load() == callers || now-progressed >= c.l.timeout {
			_ = c.Conn.Close() // the reader sees the error
			return n, err
		}
	}
}

// SetWriteDeadline leaves the deadlines to the caller from now on: TLS sets one
// for its closing alert.
func (c *timeoutConn) SetWriteDeadline(t time.Time) error {
	c.set.Store(callers)
	return c.Conn.SetWriteDeadline(t)
}

// SetDeadline bounds reads alone: writes keep their bound, which the end of a
// handshake must not remove.
func (c *timeoutConn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }
