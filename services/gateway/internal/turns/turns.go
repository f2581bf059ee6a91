// Package turns bounds how much processor time goes to clients that are not known to be well-behaved. A client
// has standing while its calls are served; work for its calls then starts at once. Work for all other clients,
// such as those that have just connected and those whose calls are mostly refused, takes turns on a part of the
// processors. Calls that end without reaching a model, however many there are and however large their headers,
// thus leave the rest of the processors to the clients that are served.
package turns

import (
	"container/heap"
	"sync"
	"sync/atomic"
	"time"
)

// A client's credits. Each served call adds one and each refused call costs several, so that a client has
// standing while at least four of five calls are served.
const (
	mostCredit  = 64
	refusalCost = 4
)

// longest is the maximum length of a turn. Work that takes longer, or waits for something else, continues
// beside the next turn.
const longest = 10 * time.Millisecond

// Turns are the turns of all clients together. It is safe for concurrent use. A nil Turns bounds nothing.
type Turns struct {
	mu      sync.Mutex
	free    int    // turns that nobody has taken; guarded by mu
	waiting queue  // empty while turns are free; guarded by mu
	entered uint64 // number of waiters so far; guarded by mu
}

// New returns turns of which at most most can be taken at a time.
func New(most int) *Turns { return &Turns{free: most} }

// Client returns a client without standing.
func (t *Turns) Client() *Client {
	if t == nil {
		return nil
	}
	return &Client{turns: t}
}

// Client is one connection. A nil Client always has standing. It is safe for concurrent use.
type Client struct {
	turns  *Turns
	credit atomic.Int32

	// Guarded by turns.mu.
	used    time.Duration // total time of its turns
	waiting *waiter       // nil if it does not wait
	left    bool
}

// Standing reports whether the client's calls need no turn.
func (c *Client) Standing() bool { return c == nil || c.credit.Load() > 0 }

// Served records that a call of the client was served.
func (c *Client) Served() {
	if c == nil || c.add(1) > 1 {
		return
	}
	c.turns.mu.Lock()
	defer c.turns.mu.Unlock()
	c.dismissLocked()
}

// Refused records that the server refused a call for a reason that the client alone is responsible for, or that
// the client canceled it before it reached a model.
func (c *Client) Refused() {
	if c != nil {
		c.add(-refusalCost)
	}
}

// add changes the credit within its bounds, and returns the new one.
func (c *Client) add(n int32) int32 {
	for {
		old := c.credit.Load()
		sum := min(max(old+n, 0), mostCredit)
		if sum == old || c.credit.CompareAndSwap(old, sum) {
			return sum
		}
	}
}

// Take waits for a turn of the client. Clients whose turns have taken the least time come first, so that many
// small calls cannot make a new client wait. Take returns nil for a client that has standing or has left. Only
// one goroutine of the client may call it at a time.
func (c *Client) Take() *Turn {
	if c.Standing() {
		return nil
	}
	t := c.turns
	t.mu.Lock()
	if c.left {
		t.mu.Unlock()
		return nil
	}
	if t.free > 0 {
		t.free--
		defer t.mu.Unlock()
		return c.startLocked()
	}
	w := &waiter{client: c, number: t.entered, ready: make(chan *Turn, 1)}
	t.entered++
	heap.Push(&t.waiting, w)
	c.waiting = w
	t.mu.Unlock()
	return <-w.ready
}

// Leave records that the client has disconnected. It waits for no further turn.
func (c *Client) Leave() {
	if c == nil {
		return
	}
	c.turns.mu.Lock()
	defer c.turns.mu.Unlock()
	c.left = true
	c.dismissLocked()
}

// dismissLocked ends the wait of a client without a turn.
func (c *Client) dismissLocked() {
	if w := c.waiting; w != nil {
		heap.Remove(&c.turns.waiting, w.index)
		c.waiting = nil
		w.ready <- nil
	}
}

func (c *Client) startLocked() *Turn {
	turn := &Turn{client: c, began: time.Now(), holders: 1}
	turn.expiry = time.AfterFunc(longest, turn.expire)
	return turn
}

// Turn is the right to use a processor. It ends when all its holders have released it, or by itself after a
// while. A client with standing has a nil Turn. It is safe for concurrent use.
type Turn struct {
	client *Client
	began  time.Time
	expiry *time.Timer

	holders int // guarded by client.turns.mu
}

// Join returns the turn with one more holder, or nil if the turn is over.
func (t *Turn) Join() *Turn {
	if t == nil {
		return nil
	}
	t.client.turns.mu.Lock()
	defer t.client.turns.mu.Unlock()
	if t.holders == 0 {
		return nil
	}
	t.holders++
	return t
}

// Release releases the turn for one of its holders.
func (t *Turn) Release() {
	if t == nil {
		return
	}
	t.client.turns.mu.Lock()
	defer t.client.turns.mu.Unlock()
	if t.holders == 1 {
		t.endLocked()
	}
	t.holders = max(t.holders-1, 0)
}

func (t *Turn) expire() {
	t.client.turns.mu.Lock()
	defer t.client.turns.mu.Unlock()
	if t.holders > 0 {
		t.endLocked()
	}
	t.holders = 0
}

// endLocked ends the turn and passes it to the next waiter.
func (t *Turn) endLocked() {
	t.expiry.Stop()
	t.client.used += time.Since(t.began)
	if w := t.client.waiting; w != nil { // it waits for its next turn
		heap.Fix(&t.client.turns.waiting, w.index)
	}
	all := t.client.turns
	if len(all.waiting) == 0 {
		all.free++
		return
	}
	next := heap.Pop(&all.waiting).(*waiter)
	next.client.waiting = nil
	next.ready <- next.client.startLocked()
}

// waiter is a client that waits for a turn.
type waiter struct {
	client *Client
	number uint64
	ready  chan *Turn // buffers one turn
	index  int        // its position in the queue
}

// queue is a heap of waiters.
type queue []*waiter

// Len implements heap.Interface.
func (q queue) Len() int { return len(q) }

// Less implements heap.Interface.
func (q queue) Less(i, j int) bool {
	a, b := q[i], q[j]
	if a.client.used != b.client.used {
		return a.client.used < b.client.used
	}
	return a.number < b.number
}

// Swap implements heap.Interface.
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	w := x.(*waiter)
	w.index = len(*q)
	*q = append(*q, w)
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	last := len(*q) - 1
	w := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return w
}
