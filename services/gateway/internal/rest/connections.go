package rest

import (
	"bytes"
	"context"
	"math"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/serve"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/turns"
)

// Bounds on the heads of requests: the request line and the header fields.
const (
	// maxHeadBytes bounds one head. net/http reads up to 4 KiB more.
	maxHeadBytes = 64 << 10
	// fieldCost is roughly the memory in bytes that a header field uses in addition to its text: its entry in a
	// growing map, and a list of values.
	fieldCost = 256
	// headShare is the reciprocal of the fraction of the budget that the incomplete heads of all connections
	// may use, and leastHeads the minimum of that amount, in bytes.
	headShare  = 8
	leastHeads = 1 << 20
)

// Connections are the connections of one HTTP server. net/http reads the head of a request before it calls a
// handler, and bounds its size only per connection. Connections charges each head to the budget until its
// request ends. If incomplete heads together use too much, it closes the connections that hold the most.
//
// It is safe for concurrent use.
type Connections struct {
	budget *memory.Budget
	turns  *turns.Turns
	most   int64 // bytes of incomplete heads
	meter  path.Meter
	closed func(net.Addr, *errs.Error)

	incomplete atomic.Int64 // bytes of incomplete heads
	relieving  sync.Mutex   // held while connections are being closed

	mu   sync.Mutex
	open map[*connection]struct{} // guarded by mu
}

// NewConnections returns the connections of a server, with none open. Connections whose calls are not served
// take turns. m counts the connections that are closed because of their client's behavior, and closed is called
// for each of them.
func NewConnections(b *memory.Budget, t *turns.Turns, m path.Meter, closed func(net.Addr, *errs.Error)) *Connections {
	most := b.Cap(math.MaxInt64)
	if most != math.MaxInt64 {
		most = max(most/headShare, leastHeads)
	}
	return &Connections{budget: b, turns: t, most: most, meter: m, closed: closed, open: make(map[*connection]struct{})}
}

// Count makes the requests on the connections of l count, and returns the listener that server is to serve. It
// sets the server's ConnState, and calls the ConnContext that was set.
func (a *Connections) Count(server *http.Server, l net.Listener) net.Listener {
	handler, connContext := server.Handler, server.ConnContext
	server.MaxHeaderBytes = maxHeadBytes
	server.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if connContext != nil {
			ctx = connContext(ctx, c)
		}
		return context.WithValue(ctx, connectionKey{}, counted(c))
	}
	server.ConnState = func(c net.Conn, state http.ConnState) {
		own := counted(c)
		switch {
		case own == nil:
		case state == http.StateActive:
			own.idle.Store(0)
		case state == http.StateIdle:
			own.idle.Store(time.Now().UnixNano())
			own.end()
		}
	}
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(connectionKey{}).(*connection); ok {
			c.begin()
		}
		handler.ServeHTTP(w, r)
	})
	return &countingListener{Listener: l, all: a}
}

// InUse reports whether any connection has a request, or had one or was opened within the given time. A nil
// Connections has none.
func (a *Connections) InUse(within time.Duration) bool {
	if a == nil {
		return false
	}
	since := time.Now().Add(-within).UnixNano()
	return slices.ContainsFunc(a.list(), func(c *connection) bool {
		idle := c.idle.Load()
		return idle == 0 || idle > since
	})
}

type connectionKey struct{}

// counted returns the connection inside a connection of a server, or nil.
func counted(c net.Conn) *connection {
	own, _ := serve.Unwrap[*connection](c)
	return own
}

type countingListener struct {
	net.Listener
	all *Connections
}

// Accept waits for the next connection.
func (l *countingListener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: raw, all: l.all, slot: serve.SlotOf(raw), client: l.all.turns.Client()}
	c.slot.Prefer(c.client.Standing)
	c.idle.Store(time.Now().UnixNano())
	l.all.mu.Lock()
	l.all.open[c] = struct{}{}
	l.all.mu.Unlock()
	return c, nil
}

// connection is the connection of one client.
type connection struct {
	net.Conn
	all    *Connections
	slot   *serve.Slot
	client *turns.Client
	idle   atomic.Int64 // when its last request ended, in nanoseconds since 1970; 0 while it has a request

	mu      sync.Mutex
	serving bool        // the handler was called and the response is not complete; guarded by mu
	head    int64       // bytes charged for the head; guarded by mu
	ended   bool        // guarded by mu
	turn    *turns.Turn // the turn in which the server works for the connection; guarded by mu
}

// Read implements net.Conn. Bytes that arrive before the handler is called count as a head, and are read in a
// turn.
func (c *connection) Read(p []byte) (int, error) {
	if len(p) > 1 { // a single byte is net/http waiting, beside the handler, for the client to disconnect
		c.Wait()
	}
	n, err := c.Conn.Read(p)
	if n == 0 {
		return n, err
	}
	head, full := c.receive(p[:n])
	if full {
		c.all.relieve()
	}
	if head {
		c.work()
	}
	return n, err
}

// receive counts the bytes that were read. It reports whether they belong to a head, and whether incomplete
// heads use too much.
func (c *connection) receive(b []byte) (head, full bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.serving || c.ended {
		return false, false
	}
	cost := int64(len(b) + fieldCost*bytes.Count(b, []byte{'\n'}))
	c.head += cost
	c.all.budget.Hold(cost)
	return true, c.all.incomplete.Add(cost) > c.all.most
}

// work waits for the connection's turn, unless it already has one or needs none.
func (c *connection) work() {
	if c.client.Standing() || c.working() {
		return
	}
	turn := c.client.Take()
	c.mu.Lock()
	if !c.ended {
		c.turn, turn = turn, c.turn
	}
	c.mu.Unlock()
	turn.Release()
}

func (c *connection) working() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.turn != nil
}

// Wait implements path.Client. It ends the connection's turn.
func (c *connection) Wait() {
	c.mu.Lock()
	turn := c.turn
	c.turn = nil
	c.mu.Unlock()
	turn.Release()
}

// Served implements path.Client.
func (c *connection) Served() { c.client.Served() }

// Refused implements path.Client.
func (c *connection) Refused() { c.client.Refused() }

// begin records that the head of a request is complete. It stays charged until the request ends.
func (c *connection) begin() {
	if c == nil {
		return
	}
	c.slot.Begin()
	c.mu.Lock()
	c.serving = true
	if !c.ended {
		c.all.incomplete.Add(-c.head)
	}
	c.mu.Unlock()
	c.work() // the head may have arrived together with the previous one
}

// end records that the response is complete, or the connection closed.
func (c *connection) end() {
	if c == nil {
		return
	}
	c.mu.Lock()
	c.endLocked()
	c.mu.Unlock()
	c.Wait()
}

func (c *connection) endLocked() {
	if c.ended {
		return
	}
	if c.serving {
		c.slot.End()
	} else {
		c.all.incomplete.Add(-c.head)
	}
	c.all.budget.Release(c.head)
	c.head, c.serving = 0, false
}

// Close closes the connection. Nothing is charged for it any more.
func (c *connection) Close() error {
	c.mu.Lock()
	c.endLocked()
	c.ended = true
	c.mu.Unlock()
	c.client.Leave()
	c.Wait()
	c.all.mu.Lock()
	delete(c.all.open, c)
	c.all.mu.Unlock()
	return c.Conn.Close()
}

// weight returns how many bytes the connection holds for an incomplete head.
func (c *connection) weight() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.serving {
		return 0
	}
	return c.head
}

// relieve closes the connections with the largest incomplete heads until all incomplete heads use at most three
// quarters of what they may.
func (a *Connections) relieve() {
	if !a.relieving.TryLock() {
		return
	}
	defer a.relieving.Unlock()
	for a.incomplete.Load() > a.most-a.most/4 {
		most := int64(0)
		open := a.list()
		for _, c := range open {
			most = max(most, c.weight())
		}
		if most == 0 {
			return
		}
		cause := errs.New(errs.MemoryFull, "the heads of requests that are not complete hold %d bytes: this one held more than others", a.incomplete.Load())
		for _, c := range open { // finds many heads of about that size at once
			if a.incomplete.Load() > a.most-a.most/4 && c.weight() >= most/2 {
				peer := c.RemoteAddr()
				_ = c.Close() // its server sees the error
				a.meter.Failed(cause.Reason)
				a.closed(peer, cause)
			}
		}
	}
}

func (a *Connections) list() []*connection {
	a.mu.Lock()
	defer a.mu.Unlock()
	open := make([]*connection, 0, len(a.open))
	for c := range a.open {
		open = append(open, c)
	}
	return open
}
