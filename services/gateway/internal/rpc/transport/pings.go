package transport

import (
	"bytes"
	"math"
	"time"

	"golang.org/x/net/http2"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Pings says how often clients may ping, as gRPC's servers enforce it (proposal A8). gRPC for
// Go disconnects a client after two pings that come too early; this counts to any number. The
// zero value lets clients ping at will.
type Pings struct {
	// Interval is the least time between two pings, unless the client gets headers or data in
	// between.
	Interval time.Duration
	// WithoutCalls has the interval hold without calls, too. Otherwise it is idleInterval then.
	WithoutCalls bool
	// Strikes is how many pings may come too early. With one more the client is
	// disconnected. 0 is any number.
	Strikes int
}

const (
	// idleInterval is the least time between two pings of a client that has no call.
	idleInterval = 2 * time.Hour
	// departure is how long a client has to close the connection after it is told to.
	departure = time.Second
)

// ping counts a ping that the client sends. gRPC acknowledges it later, and with that the
// client is told to go if it was one too many.
func (c *Connection) ping() {
	p := &c.all.options.Pings
	if p.Strikes == 0 || c.strikes > p.Strikes { // any number may come, or the client is on its way
		return
	}
	now := time.Now()
	since := now.Sub(c.pingedAt)
	c.pingedAt = now
	if c.responded.Swap(false) {
		c.strikes = 0
		return
	}
	interval := p.Interval
	if !p.WithoutCalls && !c.hasCalls() {
		interval = idleInterval
	}
	if since >= interval {
		return
	}
	if c.strikes++; c.strikes > p.Strikes {
		c.leaving.Store(true)
	}
}

func (c *Connection) hasCalls() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.streams) > 0
}

// goAway is the frame that tells a client to stop pinging and to go. No call is named as one
// that was not begun: the client may not send them again by itself.
func goAway() []byte {
	var frame bytes.Buffer
	_ = http2.NewFramer(&frame, nil).WriteGoAway(math.MaxInt32, http2.ErrCodeEnhanceYourCalm, []byte("too_many_pings")) // into memory
	return frame.Bytes()
}

// told reports that the client was told to go, and closes the connection if it does not.
func (c *Connection) told() {
	c.all.options.Closed(c.RemoteAddr(), errs.New(errs.ConnectionFlooded, "the client pings too often: more than %d times too early", c.all.options.Pings.Strikes))
	time.AfterFunc(departure, func() { _ = c.Close() })
}
