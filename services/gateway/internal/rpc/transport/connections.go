package transport

import (
	"cmp"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/serve"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
	"github.com/nereid-serving/nereid/services/gateway/internal/turns"
)

// Options apply to all connections of a server.
type Options struct {
	// Budget bounds what clients make the server hold. It may be nil.
	Budget *memory.Budget
	// Turns are the turns for connections whose calls are not served. It may be nil.
	Turns *turns.Turns
	// StallTimeout is how long a call that waits for its client may go without progress. Required.
	StallTimeout time.Duration
	// Pings bounds the pings of clients.
	Pings Pings
	// Reset is called for each call that the server resets, and returns the status that its client gets. It
	// must not call this package. Required.
	Reset func(*errs.Error) *status.Status
	// Closed is called for each connection that the server closes because of its client's behavior. Required.
	Closed func(peer net.Addr, cause *errs.Error)
}

// Connections are the connections of one server. It is safe for concurrent use.
type Connections struct {
	options     Options
	undelivered atomic.Int64 // bytes that clients have sent for incomplete calls, except for calls that are being reset
	resetting   atomic.Int64 // bytes of calls that are being reset

	relieving sync.Mutex // held while calls are being reset for lack of memory

	mu   sync.Mutex
	open map[*Connection]struct{} // guarded by mu
}

// NewConnections returns the connections of a server, with none open.
func NewConnections(o Options) *Connections {
	return &Connections{options: o, open: make(map[*Connection]struct{})}
}

// Wrap returns the connection that gRPC uses in place of raw. The client's preface is read from it next. slot
// is the connection's place among those of the listener.
func (a *Connections) Wrap(raw net.Conn, info credentials.AuthInfo, slot *serve.Slot) *Connection {
	c := &Connection{Conn: raw, AuthInfo: info, slot: slot, all: a, client: a.options.Turns.Client(), received: afterPreface(), streams: make(map[uint32]*Stream), credit: maxControlFrames, creditAt: time.Now()}
	slot.Prefer(c.client.Standing)
	a.mu.Lock()
	a.open[c] = struct{}{}
	a.mu.Unlock()
	return c
}

func (a *Connections) forget(c *Connection) {
	a.mu.Lock()
	delete(a.open, c)
	a.mu.Unlock()
}

// Undelivered bytes may fill the budget while nobody else needs it. Once no more than an eighth is free, calls
// are reset until a quarter is free. If all undelivered bytes together are less than a share of the budget,
// others fill it and no call is reset. A reset takes a moment in which more data arrives; only a client that
// then exceeds the budget by far is disconnected.
const (
	fullFrom     = 8 // the reciprocal of the free fraction
	relievedFrom = 4
	share        = 8
	leastShare   = 1 << 20
	leastExcess  = 8 << 20
)

// crowded reports whether calls that are incomplete or being reset hold half of the budget, or whether the
// budget is nearly full.
func (a *Connections) crowded() bool {
	limit := a.options.Budget.Cap(math.MaxInt64)
	if limit == math.MaxInt64 {
		return false
	}
	return a.undelivered.Load()+a.resetting.Load() > max(limit/2, leastShare) || a.options.Budget.Reserved() > limit-limit/fullFrom
}

// relieve resets calls if the budget is nearly full, and closes connections if that has not helped in time,
// those that hold the most first. It is called after each charge, without locks.
func (a *Connections) relieve() {
	undelivered, resetting := a.undelivered.Load(), a.resetting.Load()
	if undelivered+resetting <= leastShare {
		return
	}
	limit := a.options.Budget.Cap(math.MaxInt64)
	if limit == math.MaxInt64 {
		return
	}
	reserved, allowed := a.options.Budget.Reserved(), max(limit/share, leastShare)
	most := limit + max(limit/share, leastExcess)
	full := reserved > most && undelivered+resetting > allowed
	excess := min(reserved-resetting-(limit-limit/relievedFrom), undelivered-allowed)
	if !full && (reserved-resetting <= limit-limit/fullFrom || excess <= 0) || !a.relieving.TryLock() {
		return
	}
	defer a.relieving.Unlock()
	cause := errs.New(errs.MemoryFull, "the requests in flight hold %d of %d bytes: this one was not complete, and held more than others", reserved, limit)
	for _, v := range a.heaviest() {
		if full {
			if a.options.Budget.Reserved() <= most {
				return
			}
			v.connection.fail(cause)
			continue
		}
		if excess <= 0 {
			return
		}
		excess -= v.connection.resetHeaviest(excess, cause)
	}
}

// weight is how much a connection holds.
type weight struct {
	connection *Connection
	bytes      int64
}

// heaviest lists the connections that hold something, the heaviest first.
func (a *Connections) heaviest() []weight {
	var list []weight
	a.mu.Lock()
	for c := range a.open {
		list = append(list, weight{connection: c})
	}
	a.mu.Unlock()
	for i := range list {
		list[i].bytes = list[i].connection.weight()
	}
	list = slices.DeleteFunc(list, func(w weight) bool { return w.bytes == 0 })
	slices.SortFunc(list, func(a, b weight) int { return cmp.Compare(b.bytes, a.bytes) })
	return list
}
