package transport

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Sizes of the receive buffers. A connection uses the small one while it waits for a frame, so as long as it is
// idle. The large one receives the rest of a frame that did not fit, and the frames behind it.
const (
	smallBuffer = 4 << 10
	largeBuffer = 64 << 10
)

var largeBuffers = sync.Pool{New: func() any { b := make([]byte, largeBuffer); return &b }} //nolint:gochecknoglobals // memory alone

// Bounds on frames that open no call and carry no data. A client sends few of them: one or two for each frame
// of a response, and pings.
const (
	maxControlFrames = 10_000
	controlPerSecond = 100
	controlPerData   = 4
	controlPerCall   = 4
	leastData        = 256 // minimum size in bytes of a DATA frame of a call that has ended
	maxHeaderFrames  = 64  // in one header block
)

// Read implements net.Conn for gRPC's reader, which has no buffer of its own. It never returns more than gRPC
// asked for, so that nothing behind a header block is read before the block itself.
func (c *Connection) Read(b []byte) (int, error) {
	for len(c.synthetic) == 0 && len(c.unread) == 0 {
		if c.toReset.Load() && c.received.between() && c.synthesize() {
			break
		}
		if err := c.fill(); err != nil {
			return 0, err
		}
	}
	if len(c.synthetic) == 0 && c.toReset.Load() && c.received.between() {
		c.synthesize()
	}
	if len(c.synthetic) > 0 {
		n := copy(b, c.synthetic)
		c.synthetic = c.synthetic[n:]
		return n, nil
	}
	n := copy(b, c.unread)
	c.unread = c.unread[n:]
	return n, c.receive(b[:n])
}

// fill waits for bytes, and then for the connection's turn. When gRPC asks for more, it is done with the
// previous bytes.
func (c *Connection) fill() error {
	c.turn.Release()
	c.turn = nil
	into := c.small[:]
	if c.received.inside() && c.client.Standing() { // without standing, a turn handles little at a time
		if c.large == nil {
			c.large = largeBuffers.Get().(*[]byte)
		}
		into = *c.large
	} else {
		c.drop()
	}
	n, err := c.Conn.Read(into)
	c.unread = into[:n]
	switch {
	case n > 0:
		c.turn = c.client.Take()
		return nil // an error will recur on the next call
	case c.woken.Load() && isTimeout(err):
		return c.SetReadDeadline(time.Time{})
	case err != nil:
		c.drop()
	}
	return err
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// drop returns the large buffer.
func (c *Connection) drop() {
	if c.large != nil {
		largeBuffers.Put(c.large)
		c.large = nil
	}
}

// synthesize makes the next frame that gRPC reads one that makes it reset a call: a window update of zero. It
// reports whether there is such a frame.
func (c *Connection) synthesize() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.resets) > 0 && len(c.synthetic) == 0 {
		s := c.resets[0]
		c.resets = c.resets[1:]
		if !s.open {
			continue // it has already ended
		}
		c.frame = [resetBytes]byte{2: 4, 3: byte(http2.FrameWindowUpdate)}
		binary.BigEndian.PutUint32(c.frame[5:], s.id)
		c.synthetic = c.frame[:]
	}
	c.toReset.Store(len(c.resets) > 0)
	return len(c.synthetic) > 0
}

// receive counts the bytes that gRPC reads.
func (c *Connection) receive(b []byte) error {
	for len(b) > 0 {
		n, part := c.received.next(b)
		var err error
		switch {
		case part == header:
			err = c.started()
		case part == payload && c.padded:
			c.padded = false
			c.unpad(int64(b[0]))
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	if p := c.position.Load(); (p&1 == 0) != c.received.between() {
		c.position.Store(p + 1)
	}
	return nil
}

// started counts a frame whose header has arrived.
func (c *Connection) started() error {
	f := &c.received.frame
	if f.kind != http2.FrameContinuation {
		c.parts = 0
	}
	switch f.kind {
	case http2.FrameHeaders:
		c.opening = f.stream
		c.credit = min(c.credit+controlPerCall, maxControlFrames)
	case http2.FrameContinuation:
		if c.parts++; c.parts > maxHeaderFrames {
			return c.flood(errs.New(errs.ConnectionFlooded, "the headers of a call come in more than %d frames", maxHeaderFrames))
		}
	case http2.FrameData:
		if !c.data(f) && f.length < leastData {
			return c.control()
		}
	default:
		switch {
		case f.kind == http2.FrameRSTStream:
			c.canceled(f.stream)
		case f.kind == http2.FramePing && !f.flags.Has(http2.FlagPingAck):
			c.ping()
		}
		return c.control()
	}
	return nil
}

// control counts a frame that opens no call and carries no data.
func (c *Connection) control() error {
	if c.credit--; c.credit >= 0 {
		return nil
	}
	now := time.Now()
	refill := now.Sub(c.creditAt).Seconds()*controlPerSecond + float64(c.answers.Swap(0)*controlPerData)
	c.credit, c.creditAt = int(min(refill, maxControlFrames)), now
	if c.credit == 0 {
		return c.flood(errs.New(errs.ConnectionFlooded, "the client sends frames that serve no call: more than %d, and %d a second", maxControlFrames, controlPerSecond))
	}
	return nil
}

// flood closes the connection and returns the error for gRPC's reader.
func (c *Connection) flood(cause *errs.Error) error {
	c.fail(cause)
	return io.ErrClosedPipe
}

// data charges a DATA frame, and reports whether it belongs to an open call. gRPC drops the data of a call
// without a ledger.
func (c *Connection) data(f *frame) bool {
	c.mu.Lock()
	s := c.streams[f.stream]
	if s == nil {
		c.mu.Unlock()
		return false
	}
	s.halfClosed = s.halfClosed || f.ends()
	if f.length > 0 {
		cost := frameCost(f.length)
		s.unread.add(int64(f.length), cost)
		s.in.add(int64(f.length))
		c.chargeLocked(s, cost)
		c.padded = f.flags.Has(http2.FlagDataPadded)
	}
	c.mu.Unlock()
	c.all.relieve()
	return f.length > 0
}

// unpad removes padding from the current frame, including the byte that states its length.
func (c *Connection) unpad(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.streams[c.received.frame.stream]; s != nil && s.unread.bytes > 0 {
		s.unread.unpad(1 + n)
	}
}
