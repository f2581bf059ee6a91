package serve

import (
	"net"
	"sync"
	"sync/atomic"
)

// WithMaxConnections closes what is accepted on l while most connections are open:
// a client learns at once, and those that are open are served on. refused is called
// after each, with how many there were so far. 0 is no bound.
func WithMaxConnections(l net.Listener, most int, refused func(total uint64)) net.Listener {
	if most == 0 {
		return l
	}
	return &boundedListener{Listener: l, most: int64(most), refused: refused}
}

type boundedListener struct {
	net.Listener
	most    int64
	refused func(uint64)
	open    atomic.Int64
	total   uint64 // refused; of the one goroutine that accepts
}

// Accept waits for the next connection.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.open.Add(1) <= l.most {
			return &countedConn{Conn: c, closed: sync.OnceFunc(func() { l.open.Add(-1) })}, nil
		}
		l.open.Add(-1)
		_ = c.Close()
		l.total++
		l.refused(l.total)
	}
}

type countedConn struct {
	net.Conn
	closed func()
}

// Close closes the connection, which counts no more.
func (c *countedConn) Close() error {
	defer c.closed()
	return c.Conn.Close()
}
