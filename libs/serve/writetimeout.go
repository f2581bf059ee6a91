package serve

import (
	"math"
	"net"
	"sync/atomic"
	"time"
)

// WithWriteTimeout bounds the writes on the connections of l: a write that does
// not complete within timeout, or up to an eighth less, closes its connection. It
// is for servers that set no write deadlines of their own, such as gRPC's, whose
// reader does not learn of a failed write.
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

// Write sends p, or closes the connection.
func (c *timeoutConn) Write(p []byte) (int, error) {
	now := time.Since(c.l.start)
	if last := c.set.Load(); last == 0 || now-time.Duration(last) > c.l.timeout/8 {
		if err := c.Conn.SetWriteDeadline(c.l.start.Add(now + c.l.timeout)); err != nil {
			return 0, err
		}
		c.set.Store(int64(max(now, 1)))
	}
	n, err := c.Conn.Write(p)
	if err != nil {
		_ = c.Conn.Close() // the reader sees the error
	}
	return n, err
}

// SetWriteDeadline leaves the deadlines to the caller from now on: TLS sets one
// for its closing alert.
func (c *timeoutConn) SetWriteDeadline(t time.Time) error {
	c.set.Store(math.MaxInt64)
	return c.Conn.SetWriteDeadline(t)
}

// SetDeadline bounds reads alone: writes keep their bound, which the end of a
// handshake must not remove.
func (c *timeoutConn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }
