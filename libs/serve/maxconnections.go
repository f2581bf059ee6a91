package serve

import (
	"container/list"
	"net"
	"sync"
	"sync/atomic"
)

// WithMaxConnections limits the open connections of l. At the limit, each new connection
// replaces one that has been idle for long, which is closed; if none is idle, the new one is
// closed. A server says by [SlotOf] which connections serve requests; the others are idle. full
// is called for each connection that is closed so, with how many there were so far. 0 is no
// bound.
func WithMaxConnections(l net.Listener, most int, full func(total uint64)) net.Listener {
	if most == 0 {
		return l
	}
	return &boundedListener{Listener: l, most: most, full: full}
}

// maxLooks bounds the search for an idle connection, which each new one begins.
const maxLooks = 64

type boundedListener struct {
	net.Listener
	most  int
	full  func(uint64)
	total uint64 // closed for the bound; of the one goroutine that accepts

	mu   sync.Mutex
	open list.List // of *Slot, with the one that was looked at longest ago first; guarded by mu
}

// Accept waits for the next connection.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		s := &Slot{Conn: c, of: l}
		out := l.enter(s)
		if out != nil {
			_ = out.Conn.Close() // its server sees the error
			l.total++
			l.full(l.total)
		}
		if out != s {
			return s, nil
		}
	}
}

// enter gives s a place, and returns the connection that is to be closed for it: s itself
// where there is no place, and nil where there are more.
func (l *boundedListener) enter(s *Slot) (out *Slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open.Len() >= l.most {
		if out = l.idleLocked(); out == nil {
			return s
		}
		out.leaveLocked()
	}
	s.element = l.open.PushBack(s)
	return out
}

// idleLocked returns a connection that serves nothing and has not since it was last looked
// at: a second chance stands for the order in which they became idle, which would
// cost each request a lock. Preferred connections come last.
func (l *boundedListener) idleLocked() (preferred *Slot) {
	for range min(2*l.open.Len(), maxLooks) {
		first := l.open.Front()
		s := first.Value.(*Slot)
		if s.busy.Load() == 0 && !s.recent.Swap(false) {
			if s.preferred == nil || !s.preferred() {
				return s
			}
			preferred = s
		}
		l.open.MoveToBack(first)
	}
	return preferred
}

// Slot is the place of a connection among those of its listener, and the connection. A nil
// Slot is that of a listener without a bound. It is safe for concurrent use.
type Slot struct {
	net.Conn
	of        *boundedListener
	element   *list.Element // nil once it has left; guarded by of.mu
	preferred func() bool   // nil if it never is; guarded by of.mu
	busy      atomic.Int32  // requests that are served
	recent    atomic.Bool   // some were, since the listener last looked
}

// SlotOf returns the slot of a connection, which may be wrapped (see [Unwrap]), or nil where
// its listener has no bound.
func SlotOf(c net.Conn) *Slot {
	s, _ := Unwrap[*Slot](c)
	return s
}

// Unwrap returns the connection of a type that c is or wraps. Connections that wrap another
// have the method NetConn, as those of TLS do.
func Unwrap[T net.Conn](c net.Conn) (found T, ok bool) {
	for {
		if found, ok = c.(T); ok {
			return found, true
		}
		wrapped, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return found, false
		}
		c = wrapped.NetConn()
	}
}

// Prefer has the connection keep its place while preferred reports true and others are idle that
// are not preferred.
func (s *Slot) Prefer(preferred func() bool) {
	if s != nil {
		s.of.mu.Lock()
		s.preferred = preferred
		s.of.mu.Unlock()
	}
}

// Begin says that the connection serves one more request.
func (s *Slot) Begin() {
	if s != nil {
		s.busy.Add(1)
	}
}

// End says that a request that has begun is over.
func (s *Slot) End() {
	if s != nil {
		s.recent.Store(true)
		s.busy.Add(-1)
	}
}

// Close closes the connection, which gives up its place.
func (s *Slot) Close() error {
	s.of.mu.Lock()
	s.leaveLocked()
	s.of.mu.Unlock()
	return s.Conn.Close()
}

func (s *Slot) leaveLocked() {
	if s.element != nil {
		s.of.open.Remove(s.element)
		s.element = nil
	}
}
