package rpc

import (
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"

	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// connection is one client's. gRPC keeps a response for as long as the client
// grants no window for it, also when the handler has returned. So the connection
// counts what the client has not taken, and ends when that takes too long: gRPC has
// no way for a server to reset one call.
type connection struct {
	net.Conn
	credentials.AuthInfo
	budget  *core.Budget
	timeout time.Duration
	stalled func() // called before the connection is closed for a response that is not taken

	order order

	mu     sync.Mutex
	unread []*response // in no order; guarded by mu
	bytes  int64       // of unread; guarded by mu
	timer  *time.Timer // runs while there may be any; guarded by mu
	closed bool        // guarded by mu
}

// response is one that gRPC has. It poses as the buffer pool to which gRPC returns
// the response's own memory.
type response struct {
	connection *connection
	replies    *buffers
	own        int64 // bytes of that memory, which are charged to the budget
	bytes      int64 // of the whole
	deadline   time.Time
	parts      int // buffers that gRPC has not returned; guarded by connection.mu
	at         int // in connection.unread; guarded by connection.mu
}

var _ mem.BufferPool = (*response)(nil)

// takenWithin is how many bytes a client takes within the timeout, or more.
const takenWithin = 1 << 20

// hand charges a response that gRPC is about to get in so many parts.
func (c *connection) hand(r *response, parts int) {
	r.connection, r.parts = c, parts
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.budget.Hold(r.own)
	c.bytes += r.bytes
	// It shares the connection with those before it.
	r.deadline = time.Now().Add(c.timeout * time.Duration(1+c.bytes/takenWithin))
	r.at = len(c.unread)
	c.unread = append(c.unread, r)
	if c.timer == nil {
		c.timer = time.AfterFunc(c.timeout, c.check)
	}
}

// taken says that gRPC has sent one of a response's parts, or dropped it.
func (r *response) taken() {
	c := r.connection
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.parts--; r.parts > 0 || c.closed {
		return
	}
	c.budget.Release(r.own)
	c.bytes -= r.bytes
	last := len(c.unread) - 1
	c.unread[r.at] = c.unread[last]
	c.unread[r.at].at = r.at
	c.unread[last] = nil
	c.unread = c.unread[:last]
}

// Put takes the response's own memory back.
func (r *response) Put(own *[]byte) {
	r.replies.Put(own)
	r.taken()
}

// Get is not used: gRPC has one buffer of this pool, which it got.
func (r *response) Get(n int) *[]byte { return r.replies.Get(n) }

// check closes the connection if a response on it is late.
func (c *connection) check() {
	if c.late(time.Now()) {
		c.stalled()
		_ = c.Close() // whoever reads or writes sees the error
	}
}

// late reports whether a response is, or else has the timer look again in time.
func (c *connection) late(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(c.unread) == 0 {
		c.timer = nil
		return false
	}
	next := c.unread[0].deadline
	for _, r := range c.unread {
		if r.deadline.Before(next) {
			next = r.deadline
		}
	}
	if !next.After(now) {
		return true
	}
	c.timer.Reset(next.Sub(now))
	return false
}

// Close closes the connection. What is not taken is charged no more: gRPC drops it,
// and need not return it.
func (c *connection) Close() error {
	c.mu.Lock()
	for _, r := range c.unread {
		c.budget.Release(r.own)
	}
	c.unread, c.bytes, c.closed = nil, 0, true
	if c.timer != nil {
		c.timer.Stop()
	}
	c.mu.Unlock()
	return c.Conn.Close()
}

// handshakes has each connection be one that counts. What a handshake learns of the
// client is what its calls see of their connection.
type handshakes struct {
	credentials.TransportCredentials
	budget  *core.Budget
	timeout time.Duration
	stalled func()
}

// ServerHandshake implements credentials.TransportCredentials.
func (h handshakes) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := h.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	c := &connection{Conn: conn, AuthInfo: info, budget: h.budget, timeout: h.timeout, stalled: h.stalled}
	return c, c, nil
}

// Clone implements credentials.TransportCredentials.
func (h handshakes) Clone() credentials.TransportCredentials {
	h.TransportCredentials = h.TransportCredentials.Clone()
	return h
}

// connectionOf returns the connection of a call, which has come by one of
// handshakes.
func connectionOf(ctx context.Context) *connection {
	p, _ := peer.FromContext(ctx)
	return p.AuthInfo.(*connection)
}

// countedStream is a stream of generated code whose messages count until the client
// takes them.
type countedStream struct {
	grpc.ServerStream
	service *service
}

// SendMsg implements grpc.ServerStream.
func (s countedStream) SendMsg(m any) error {
	message, err := s.service.reply(s.Context(), m)
	if err != nil {
		return err
	}
	return s.ServerStream.SendMsg(message)
}
