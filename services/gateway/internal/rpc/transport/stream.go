package transport

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/gateway/internal/turns"
)

// streamCost is roughly the memory in bytes that a call uses in gRPC and in the gateway in addition to its
// headers and messages, mostly for the stacks of up to four goroutines.
const streamCost = 48 << 10

// Stream is the ledger of one call: what its client has sent and the call has not received, and what the call
// has sent and its client has not read. The zero value and a nil Stream are closed and count nothing. It is
// safe for concurrent use.
type Stream struct {
	connection *Connection // nil in the zero value
	id         uint32
	waits      atomic.Int32               // a wait
	turn       atomic.Pointer[turns.Turn] // in which the handler works; nil while it waits
	waited     atomic.Bool                // Wait was called

	// Guarded by connection.mu.
	open       bool
	halfClosed bool        // the client has sent everything
	started    bool        // the response's headers are written
	cause      *errs.Error // why it is being reset; nil if it is not
	handled    bool        // the handler has started and not returned
	fixed      int64       // bytes charged until both the call and its handler have ended
	weighed    int64       // charged bytes for which the call may be reset
	unread     ledger
	outgoing   []int64 // sizes of the responses that are not written yet
	sending    message // the first of these
	first      [1]int64
	in, out    meter
	resetFor   int // checks since the reset started
}

// Enter records that the handler starts.
func (s *Stream) Enter() {
	if s == nil || s.connection == nil {
		return
	}
	s.connection.mu.Lock()
	s.handled = s.open
	s.connection.mu.Unlock()
}

// Leave records that the handler has returned. The client may have ended the call earlier, but the call used
// memory until now.
func (s *Stream) Leave() {
	if s == nil || s.connection == nil {
		return
	}
	c := s.connection
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.handled && !s.open {
		c.ending -= s.fixed
		c.all.resetting.Add(-s.fixed)
		c.all.options.Budget.Release(s.fixed)
		s.fixed = 0
	}
	s.handled = false
	s.Rest()
}

// Rest ends the turn of the call's handler.
func (s *Stream) Rest() {
	if s != nil && s.turn.Load() != nil {
		s.turn.Swap(nil).Release()
	}
}

// Wait implements path.Client.
func (s *Stream) Wait() {
	if s != nil && s.connection != nil {
		s.waited.Store(true)
		s.Rest()
	}
}

// Served implements path.Client.
func (s *Stream) Served() {
	if s != nil && s.connection != nil {
		s.connection.client.Served()
	}
}

// Refused implements path.Client.
func (s *Stream) Refused() {
	if s != nil && s.connection != nil {
		s.connection.client.Refused()
	}
}

// wait is what the handler of a call waits for.
type wait = int32

const (
	waitNone wait = iota
	waitNext      // the next message of several, if it arrives
	waitOnly      // the only message
)

// Await records that the handler waits for the call's only message, or for the next of its messages.
func (s *Stream) Await(only bool) {
	switch {
	case s == nil:
	case only:
		s.waits.Store(waitOnly)
	default:
		s.waits.Store(waitNext)
	}
	if s != nil && s.turn.Load() != nil && !s.hasUnread() {
		s.Rest()
	}
}

func (s *Stream) hasUnread() bool {
	s.connection.mu.Lock()
	defer s.connection.mu.Unlock()
	return s.unread.bytes > 0
}

// Deliver records that a message of n bytes has reached the codec, and returns how many bytes stay charged for
// it until [Stream.Release].
func (s *Stream) Deliver(n int) int64 {
	if s == nil || s.connection == nil {
		return 0
	}
	c := s.connection
	c.mu.Lock()
	defer c.mu.Unlock()
	only := s.waits.Swap(waitNone) == waitOnly
	if !s.open {
		return 0
	}
	s.in = meter{}
	cost := s.unread.take(int64(n) + prefixBytes)
	c.unweighLocked(s, cost)
	if only && s.cause == nil {
		c.unweighLocked(s, s.weighed) // the rest stays with the call until its end
	}
	return cost
}

// Release releases the bytes of a message that has been decoded.
func (s *Stream) Release(bytes int64) {
	if bytes != 0 {
		s.connection.all.options.Budget.Release(bytes)
	}
}

// smallResponse is how many bytes of memory a response may use when the budget is full, so that a call can
// still send its error. gRPC writes at most one more before its client has read 64 KiB.
const smallResponse = 4 << 10

// Respond charges n bytes of a response that is about to be passed to gRPC, until gRPC has written it or the
// call has ended. It returns a refusal if the budget is full.
func (s *Stream) Respond(n int64) error {
	if s == nil || s.connection == nil {
		return nil
	}
	c := s.connection
	c.mu.Lock()
	defer c.mu.Unlock()
	if !s.open {
		return nil
	}
	if n <= smallResponse {
		c.all.options.Budget.Hold(n)
	} else if err := c.all.options.Budget.Reserve(n); err != nil {
		return err
	}
	if len(s.outgoing) == 0 {
		s.outgoing, s.out = s.first[:0], meter{}
	}
	s.outgoing = append(s.outgoing, n)
	return nil
}

// responses returns the sum of the responses that are not written yet.
func (s *Stream) responses() (total int64) {
	for _, n := range s.outgoing {
		total += n
	}
	return total
}

// prefixBytes is the size of the prefix of each gRPC message: a compression flag and the length.
const prefixBytes = 5

// message is a position in the messages of a stream, within the bytes of its DATA frames.
type message struct {
	prefix [prefixBytes]byte
	have   int
	left   int // bytes of the current message after its prefix
}

// between reports whether no message is partly written.
func (m *message) between() bool { return m.have == 0 && m.left == 0 }

// advance moves the position past b, and returns how many messages end in it.
func (m *message) advance(b []byte) (ended int) {
	for len(b) > 0 {
		if m.left > 0 {
			n := min(m.left, len(b))
			if b = b[n:]; n == m.left {
				ended++
			}
			m.left -= n
			continue
		}
		n := copy(m.prefix[m.have:], b)
		b = b[n:]
		if m.have += n; m.have < prefixBytes {
			break
		}
		m.have = 0
		if m.left = int(binary.BigEndian.Uint32(m.prefix[1:])); m.left == 0 {
			ended++
		}
	}
	return ended
}

// wrote counts bytes of responses that gRPC has written.
func (s *Stream) wrote(b []byte) {
	s.out.add(int64(len(b)))
	for range min(s.sending.advance(b), len(s.outgoing)) {
		s.connection.all.options.Budget.Release(s.outgoing[0])
		s.outgoing = s.outgoing[1:]
		s.out = meter{}
	}
}
