package transport

import (
	"bytes"
	"math"
	"time"

	"golang.org/x/net/http2"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Pings says how often clients may ping, as gRPC's servers enforce it (proposal A8). gRPC for Go disconnects a
// client after two early pings; Pings allows any number. The zero value lets clients ping at will.
type Pings struct {
	// Interval is the minimum time between two pings, unless the client receives headers or data in between.
	Interval time.Duration
	// WithoutCalls applies the interval also without calls. Otherwise idleInterval applies then.
	WithoutCalls bool
	// Strikes is how many pings may arrive too early. One more disconnects the client. 0 means any number.
	Strikes int
}

const (
	// idleInterval is the minimum time between two pings of a client without calls.
	idleInterval = 2 * time.Hour
	// departure is how long a client has to close the connection after it was told to.
	departure = time.Second
)

// ping counts a ping from the client. gRPC acknowledges it later; if it was one too many, the client is then
// told to disconnect.
func (c *Connection) ping() {
	p := &c.all.options.Pings
	if p.Strikes == 0 || c.strikes > p.Strikes { // any number is allowed, or the client has already been told to disconnect
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

// goAway returns the frame that tells a client to stop pinging and to disconnect. It names no call as not
// started, so that the client does not retry calls by itself.
func goAway() []byte {
	var frame bytes.Buffer
	_ = http2.NewFramer(&frame, nil).WriteGoAway(math.MaxInt32, http2.ErrCodeEnhanceYourCalm, []byte("too_many_pings")) // into memory
	return frame.Bytes()
}

// told reports that the client was told to disconnect, and closes the connection if the client does not.
func (c *Connection) told() {
	c.all.options.Closed(c.RemoteAddr(), errs.New(errs.ConnectionFlooded, "the client pings too often: more than %d times too early", c.all.options.Pings.Strikes))
	time.AfterFunc(departure, func() { _ = c.Close() })
}
