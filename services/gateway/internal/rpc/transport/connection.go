package transport

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/serve"
	"github.com/nereid-serving/nereid/services/gateway/internal/turns"
)

// Connection is the connection of one client. gRPC reads and writes it, and gets it as the AuthInfo of its
// calls. One goroutine reads and another writes.
type Connection struct {
	net.Conn
	credentials.AuthInfo
	slot   *serve.Slot
	all    *Connections
	client *turns.Client

	// Used by the goroutine that reads.
	received  scanner
	turn      *turns.Turn // in which gRPC processes what has arrived
	opening   uint32      // the stream of the last header block
	padded    bool        // the current frame's first byte is the length of its padding
	parts     int         // number of frames in the current header block
	small     [smallBuffer]byte
	large     *[]byte // nil unless a large frame is arriving
	unread    []byte  // part of small or large
	synthetic []byte  // the rest of a frame that the server made up
	frame     [resetBytes]byte
	credit    int           // control frames that the client may still send
	creditAt  time.Time     // when credit was last counted
	position  atomic.Uint64 // odd within a frame or header block; a new value for each
	woken     atomic.Bool   // the read deadline is being used to end a Read
	toReset   atomic.Bool   // resets is not empty
	answers   atomic.Int64  // DATA frames written, to which clients respond with control frames
	pingedAt  time.Time     // when the last ping arrived
	strikes   int           // pings that arrived too early
	responded atomic.Bool   // headers or data were written since the last ping
	leaving   atomic.Bool   // the client is to be told to disconnect

	sent scanner // used by the goroutine that writes

	mu      sync.Mutex
	streams map[uint32]*Stream // the open streams; guarded by mu
	weighed int64              // undelivered bytes of streams; guarded by mu
	ending  int64              // bytes of calls that have ended but whose handlers have not; guarded by mu
	resets  []*Stream          // streams that gRPC is to reset; guarded by mu
	timer   *time.Timer        // runs while there are streams; guarded by mu
	at      uint64             // position at the last check; guarded by mu
	stuck   int                // checks since position changed; guarded by mu
	closed  bool               // guarded by mu
}

// Open opens the ledger s of the call whose headers were read last and use about headers bytes of memory. gRPC
// calls it in the goroutine that reads, before it reads more, so it cannot concern another call. It returns a
// refusal if the client has no standing, the call is not a probe, and incomplete calls hold half of the budget
// or seven eighths of it are used: the rest is reserved for clients with standing.
func (c *Connection) Open(s *Stream, headers int, probe bool) error {
	if !probe && !c.client.Standing() && c.all.crowded() {
		return errs.New(errs.MemoryFull, "the requests in flight hold much of the memory that there is for requests: only clients whose requests are served may begin others")
	}
	s.connection, s.id, s.fixed = c, c.opening, streamCost+int64(headers)
	s.turn.Store(c.turn.Join())
	c.mu.Lock()
	if c.closed || c.streams[s.id] != nil {
		c.mu.Unlock()
		return nil
	}
	s.open, s.halfClosed = true, c.received.frame.ends()
	c.streams[s.id] = s
	c.slot.Begin()
	c.chargeLocked(s, s.fixed)
	if c.timer == nil {
		c.timer = time.AfterFunc(c.all.options.StallTimeout/checks, c.check)
	}
	c.mu.Unlock()
	c.all.relieve()
	return nil
}

// chargeLocked charges n bytes that s holds undelivered.
func (c *Connection) chargeLocked(s *Stream, n int64) {
	c.all.options.Budget.Hold(n)
	s.weighed += n
	if s.cause != nil {
		c.all.resetting.Add(n)
		return
	}
	c.weighed += n
	c.all.undelivered.Add(n)
}

// unweighLocked stops counting n bytes of s as undelivered. They stay charged.
func (c *Connection) unweighLocked(s *Stream, n int64) {
	s.weighed -= n
	if s.cause != nil {
		c.all.resetting.Add(-n)
		return
	}
	c.weighed -= n
	c.all.undelivered.Add(-n)
}

// endLocked closes the ledger of a stream and releases what it holds.
func (c *Connection) endLocked(s *Stream) {
	if !s.open {
		return
	}
	c.unweighLocked(s, s.weighed)
	c.all.options.Budget.Release(s.unread.cost + s.responses())
	if s.handled {
		c.ending += s.fixed
		c.all.resetting.Add(s.fixed)
	} else {
		c.all.options.Budget.Release(s.fixed)
		s.fixed = 0
	}
	s.open, s.unread, s.outgoing = false, ledger{}, nil
	delete(c.streams, s.id)
	c.slot.End()
}

// canceled closes the ledger of a call that its client resets. A call that has not reached its model counts as
// refused: a client that resets its calls at once is no better than one whose calls cannot be served.
func (c *Connection) canceled(id uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.streams[id]; s != nil {
		c.endLocked(s)
		if !s.waited.Load() {
			c.client.Refused()
		}
	}
}

// weight returns how many bytes the connection holds for calls that are undelivered or ending.
func (c *Connection) weight() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.ending
	for _, s := range c.streams {
		n += s.weighed
	}
	return n
}

// resetHeaviest resets the calls that hold the most until they add up to the given number of bytes or none is
// left. It returns their total.
func (c *Connection) resetHeaviest(bytes int64, cause *errs.Error) (total int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for total < bytes {
		var most int64
		for _, s := range c.streams {
			if s.cause == nil {
				most = max(most, s.weighed)
			}
		}
		if most == 0 {
			break
		}
		for _, s := range c.streams { // finds many small calls at once
			if total < bytes && s.cause == nil && s.weighed >= most/2 {
				total += s.weighed
				c.resetLocked(s, cause)
			}
		}
	}
	return total
}

// resetLocked makes gRPC reset a call and its client receive the cause.
func (c *Connection) resetLocked(s *Stream, cause *errs.Error) {
	n := s.weighed
	c.unweighLocked(s, n)
	s.cause = cause
	s.weighed = n
	c.all.resetting.Add(n)
	c.resets = append(c.resets, s)
	c.toReset.Store(true)
	c.woken.Store(true)
	_ = c.SetReadDeadline(time.Unix(1, 0)) // a closed connection has no streams
}

// fail closes the connection because of its client's behavior.
func (c *Connection) fail(cause *errs.Error) {
	if c.close() {
		c.all.options.Closed(c.RemoteAddr(), cause)
	}
	_ = c.Conn.Close() // gRPC sees the error
}

// Close closes the connection and stops charging for it.
func (c *Connection) Close() error {
	c.close()
	return c.Conn.Close()
}

// close releases what the connection holds, and reports whether it was open.
func (c *Connection) close() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.closed = true
	for _, s := range c.streams {
		c.endLocked(s)
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	c.client.Leave()
	c.all.forget(c)
	return true
}
