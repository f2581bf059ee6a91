package serve

import (
	"math"
	"net"
	"sync/atomic"
	"time"
)

// Patient gives the connections of l a bound on how long the peer may take
// none of what is written: a write that does not get through within patience,
// or up to an eighth less, closes its connection. It is for servers that set
// no write deadlines of their own, such as gRPC's, whose reader does not learn
// of a write that failed.
func Patient(l net.Listener, patience time.Duration) net.Listener {
	return &patientListener{Listener: l, patience: patience, began: time.Now()}
}

type patientListener struct {
	net.Listener
	patience time.Duration
	began    time.Time
}

// Accept waits for the next connection.
func (l *patientListener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &patientConn{Conn: raw, of: l}, nil
}

// patientConn has a write deadline that moves with its writes, in steps: moving
// a deadline costs more than a small write's share of a busy connection. One
// that passes while nothing is written does no harm.
type patientConn struct {
	net.Conn
	of    *patientListener
	moved atomic.Int64 // when the deadline was moved, since of.began, in nanoseconds; 0 is never
}

// Write sends p, or closes the connection.
func (c *patientConn) Write(p []byte) (int, error) {
	now := time.Since(c.of.began)
	if last := c.moved.Load(); last == 0 || now-time.Duration(last) > c.of.patience/8 {
		if err := c.Conn.SetWriteDeadline(c.of.began.Add(now + c.of.patience)); err != nil {
			return 0, err
		}
		c.moved.Store(int64(max(now, 1)))
	}
	n, err := c.Conn.Write(p)
	if err != nil {
		_ = c.Conn.Close() // whoever reads sees that it is over
	}
	return n, err
}

// SetWriteDeadline hands the deadlines over to the caller: TLS has one of its
// own for the end.
func (c *patientConn) SetWriteDeadline(t time.Time) error {
	c.moved.Store(math.MaxInt64)
	return c.Conn.SetWriteDeadline(t)
}

// SetDeadline bounds reads: writes have the bound of every write, which the end
// of a handshake must not lift.
func (c *patientConn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }
