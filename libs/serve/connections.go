package serve

import (
	"net"
	"sync"
	"sync/atomic"
)

// connections is a listener that tracks its open connections. The servers'
// own graceful stops wait for a client that has connected and sends nothing:
// net/http for 5 s, grpc-go for the 2 min of its handshake. Clients do that
// with connections of their pools.
type connections struct {
	net.Listener

	mu       sync.Mutex
	open     map[*connection]struct{} // guarded by mu
	stopping bool                     // guarded by mu
}

func track(l net.Listener) *connections {
	return &connections{Listener: l, open: make(map[*connection]struct{})}
}

// Accept waits for the next connection.
func (c *connections) Accept() (net.Conn, error) {
	raw, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	conn := &connection{Conn: raw, of: c}
	c.mu.Lock()
	stopping := c.stopping
	c.open[conn] = struct{}{}
	c.mu.Unlock()
	if stopping {
		_ = conn.Close()
	}
	return conn, nil
}

// closeUnused closes the connections that have sent nothing, those accepted
// later too.
func (c *connections) closeUnused() {
	c.closeIf(func(conn *connection) bool { return !conn.used.Load() })
}

// closeAll closes every connection.
func (c *connections) closeAll() { c.closeIf(func(*connection) bool { return true }) }

func (c *connections) closeIf(wanted func(*connection) bool) {
	var list []*connection
	c.mu.Lock()
	c.stopping = true
	for conn := range c.open {
		if wanted(conn) {
			list = append(list, conn)
		}
	}
	c.mu.Unlock()
	for _, conn := range list {
		_ = conn.Close() // its server sees the error
	}
}

// connection is one of the tracked ones.
type connection struct {
	net.Conn
	of   *connections
	used atomic.Bool // bytes have been read
}

// Read notes the first bytes.
func (c *connection) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && !c.used.Load() {
		c.used.Store(true)
	}
	return n, err
}

// NetConn returns the connection that is tracked.
func (c *connection) NetConn() net.Conn { return c.Conn }

// Close forgets the connection.
func (c *connection) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
