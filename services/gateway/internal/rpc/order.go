package rpc

import (
	"context"
	"sync"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc/transport"
)

// messageTimeout is how long a request of a sequence waits for the message of a call that was opened before its
// own. A message that has not arrived by then is late because of the client or the network, not because a
// goroutine was not scheduled.
const messageTimeout = time.Second

// order lists the calls of ModelInfer on one connection that may belong to a sequence and are not submitted
// yet, in the order in which the client opened them. gRPC runs each call in its own goroutine, but requests of
// a sequence must be submitted in the order of their calls.
type order struct {
	mu          sync.Mutex
	first, last *ticket // guarded by mu
}

// ticket combines a call's context, its ledger, and the place of a ModelInfer call in the order of its
// connection, so that a call needs only one allocation.
type ticket struct {
	context.Context
	ledger transport.Stream

	// Of a call of ModelInfer; guarded by order.mu.
	order         *order
	before, after *ticket
	listed        bool
	received      bool          // the call waits for its turn or has it, and gives up its place itself
	turn          chan struct{} // closed when the call is first; nil if it does not wait
}

type ticketKey struct{}

// Value implements context.Context.
func (t *ticket) Value(key any) any {
	if key == (ticketKey{}) {
		return t
	}
	return t.Context.Value(key)
}

// ticketOf returns the ticket of a call.
func ticketOf(ctx context.Context) *ticket {
	return ctx.Value(ticketKey{}).(*ticket)
}

// clientOf returns the connection of a call.
func clientOf(ctx context.Context) path.Client { return &ticketOf(ctx).ledger }

// open puts a call last. It drops calls from both ends that ended before they had a handler, such as those with
// an unknown compression.
func (o *order) open(t *ticket) {
	t.order, t.listed = o, true
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.first != nil && o.first.Err() != nil && !o.first.received {
		o.dropLocked(o.first)
	}
	for o.last != nil && o.last.Err() != nil && !o.last.received {
		o.dropLocked(o.last)
	}
	if t.before = o.last; t.before == nil {
		o.first = t
	} else {
		t.before.after = t
	}
	o.last = t
}

// leave gives up the place, once the request has been submitted or never will be. Further calls have no effect.
func (t *ticket) leave() {
	t.order.mu.Lock()
	defer t.order.mu.Unlock()
	t.order.dropLocked(t)
}

// wait returns when the call is first, or with its context's error. It does not wait longer than timeout for
// the messages of other calls.
func (t *ticket) wait(timeout time.Duration) error {
	turn := t.await()
	if turn == nil {
		return nil
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		select {
		case <-turn:
			return nil
		case <-t.Done():
			return t.Err()
		case <-timer.C:
			t.giveUp()
			timer.Reset(timeout)
		}
	}
}

// await returns a channel that is closed when the call is first, or nil if it already is.
func (t *ticket) await() chan struct{} {
	t.order.mu.Lock()
	defer t.order.mu.Unlock()
	t.received = true
	if t.before != nil {
		t.turn = make(chan struct{})
	}
	return t.turn
}

// giveUp removes the calls before this one whose messages have not arrived, so that each delays others at most
// once.
func (t *ticket) giveUp() {
	t.order.mu.Lock()
	defer t.order.mu.Unlock()
	for u := t.before; u != nil; {
		late := u
		if u = u.before; !late.received {
			t.order.dropLocked(late)
		}
	}
}

func (o *order) dropLocked(t *ticket) {
	if !t.listed {
		return
	}
	t.listed = false
	if t.before == nil {
		o.first = t.after
	} else {
		t.before.after = t.after
	}
	if t.after == nil {
		o.last = t.before
	} else {
		t.after.before = t.before
	}
	t.before, t.after = nil, nil
	if o.first != nil && o.first.turn != nil {
		close(o.first.turn)
		o.first.turn = nil
	}
}

// inSequence reports whether a request with these parameters may belong to a sequence.
func inSequence(parameters []infer.Parameter) bool {
	for i := range parameters {
		if parameters[i].Key == sequenceIDKey {
			return true
		}
	}
	return false
}
