package export

import (
	"context"
	"errors"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/plane/codec"
	"github.com/nereid-serving/nereid/libs/plane/link"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// calls are the calls and controls of a stream, by their numbers. The peer's mu guards
// them.
type calls struct {
	taken bool // the peer takes calls

	made  map[uint64]*calling  // that this side has made
	asked map[uint64]*question // the same

	served   map[uint64]*called // of the peer
	controls map[uint64]context.CancelFunc
}

func newCalls() calls {
	return calls{
		made: make(map[uint64]*calling), asked: make(map[uint64]*question),
		served: make(map[uint64]*called), controls: make(map[uint64]context.CancelFunc),
	}
}

// called is a call of a model of the peer. It belongs to the stream over which it came.
// The peer's mu guards what is not set once.
type called struct {
	peer   *peer
	stream *stream
	number uint64
	room   chan struct{} // of one place: there may be room for a response, or nobody waits for one

	cancel   func() // nil until it was made
	canceled bool
	ended    bool     // its final response was sent
	lent     bool     // by the peer: inputs that may still be read
	unread   []unread // responses that the model has not taken, in order
	bytes    int64    // of these
	taken    uint32   // responses
}

// unread is a response that was sent.
type unread struct {
	bytes int64
	lease Lease // of its outputs
}

// onCall has a call of the peer made here. It does not block: what the caller has to
// wait for is waited for elsewhere.
func (p *peer) onCall(s *stream, number uint64, of *infer.Call) error {
	c := &called{peer: p, stream: s, number: number, room: make(chan struct{}, 1)}
	err := p.admit(c, of)
	if err != nil {
		of.Release()
		return err
	}
	cancel := p.endpoint.config.Calls.Call(of, c.send)
	p.mu.Lock()
	c.cancel = cancel
	canceled := c.canceled
	p.mu.Unlock()
	if canceled {
		cancel()
	}
	return nil
}

// admit enters a call, unless the peer may not make it.
func (p *peer) admit(c *called, of *infer.Call) error {
	if p.endpoint.config.Calls == nil {
		return errs.New(errs.PeerMalformed, "the peer calls a model at a process that is no gateway")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.room(c.stream, c.number); err != nil {
		return err
	}
	if err := c.watch(of); err != nil {
		return err
	}
	c.stream.calls.served[c.number] = c
	return nil
}

// room refuses a call or control that is one too many, or whose number is not new. The
// caller holds mu.
func (p *peer) room(s *stream, number uint64) error {
	if len(s.calls.served)+len(s.calls.controls) >= maxCalls {
		return errs.New(errs.PeerMalformed, "the peer has more than %d calls under way", maxCalls)
	}
	if s.calls.served[number] != nil || s.calls.controls[number] != nil {
		return errs.New(errs.PeerMalformed, "the peer has two calls of the number %d", number)
	}
	return nil
}

// watch has the peer learn when its inputs are read no more: when the request that the
// call becomes is over, which may be later than the call.
func (c *called) watch(of *infer.Call) error {
	lent := tensor.Wrap(nil, false, func(*tensor.Buffer) { c.inputsRead() })
	for i := range of.Inputs {
		data := &of.Inputs[i].Data
		switch data.Place {
		case tensor.Nowhere, tensor.Local:
			continue
		case tensor.Remote:
			if data.Holder == c.peer.incarnation {
				data.Buffer, c.lent = lent.Retain(), true
				continue
			}
		}
		return errs.New(errs.PeerMalformed, "the peer calls a model with an input that is not its own")
	}
	if c.lent {
		lent.Release()
	}
	return nil
}

// inputsRead gives the inputs back.
func (c *called) inputsRead() {
	c.peer.mu.Lock()
	defer c.peer.mu.Unlock()
	c.lent = false
	if c.stream.calls.served[c.number] != c {
		return // the stream has ended, and the lease with it
	}
	_ = c.stream.link.Write(func(w *codec.Writer) error { return w.CallTaken(c.number, 0) })
	c.settle()
}

// send sends a response, which it takes over, and returns when the next one may come.
func (c *called) send(r *infer.Response) {
	final := r.Final
	if cancel := c.write(r); cancel != nil {
		cancel()
	}
	for !final && c.full() {
		<-c.room
	}
}

// write sends a response. It returns what cancels a call whose response cannot be sent.
func (c *called) write(r *infer.Response) (cancel func()) {
	e := c.peer.endpoint
	defer r.Release()
	named, size := *r, r.OutputBytes()
	var lease Lease
	named.Outputs, lease = e.Exports.Lend(r.Outputs, e.Identity().Epoch)
	c.peer.mu.Lock()
	defer c.peer.mu.Unlock()
	if c.ended || c.canceled && !r.Final || c.stream.calls.served[c.number] != c {
		lease.Release()
		return nil
	}
	err := c.stream.link.Write(func(w *codec.Writer) error { return w.CallResponse(c.number, &named) })
	if err != nil {
		lease.Release()
		return c.unsent(err)
	}
	c.unread = append(c.unread, unread{size, lease})
	c.bytes += size
	if c.ended = r.Final; c.ended {
		c.settle()
	}
	return nil
}

// unsent ends a call of which a response cannot be sent. The caller holds mu.
func (c *called) unsent(err error) (cancel func()) {
	c.ended, c.canceled = true, true
	if !errors.Is(err, link.ErrClosed) {
		lost := &infer.Response{Final: true, Err: errs.Wrap(errs.TransferFailed, err, "a response to the call could not be sent: %v", err)}
		_ = c.stream.link.Write(func(w *codec.Writer) error { return w.CallResponse(c.number, lost) }) // else the stream has ended
		c.unread = append(c.unread, unread{})
		c.settle()
	}
	return c.cancel
}

// full reports whether the model has to take responses first.
func (c *called) full() bool {
	c.peer.mu.Lock()
	defer c.peer.mu.Unlock()
	return !c.canceled && (len(c.unread) >= windowResponses || c.bytes >= windowResponseBytes)
}

// settle forgets a call that has ended when nothing of it is lent any more. The caller
// holds mu.
func (c *called) settle() {
	if !c.ended || c.lent {
		return
	}
	for i := range c.unread {
		if !c.unread[i].lease.Empty() {
			return
		}
	}
	delete(c.stream.calls.served, c.number)
}

// onTaken takes the word of either side of a call about what it needs no more. The
// caller holds mu.
func (p *peer) onTaken(s *stream, number uint64, responses uint32) error {
	if s == p.served { // the gateway's
		return p.inputsTaken(s, number)
	}
	c := s.calls.served[number]
	if c == nil {
		return nil // it has ended without anything that was lent
	}
	n := responses - c.taken
	if uint64(n) > uint64(len(c.unread)) {
		return errs.New(errs.PeerMalformed, "the peer has taken %d responses to a call, of which it got %d", responses, uint64(c.taken)+uint64(len(c.unread)))
	}
	for i := range c.unread[:n] {
		c.bytes -= c.unread[i].bytes
		c.unread[i].lease.Release()
	}
	c.unread, c.taken = c.unread[n:], responses
	c.wake()
	c.settle()
	return nil
}

func (c *called) wake() {
	select {
	case c.room <- struct{}{}:
	default:
	}
}

// onCancel cancels a call or control of the peer. One that has ended is none.
func (p *peer) onCancel(s *stream, number uint64) {
	p.mu.Lock()
	cancel := s.calls.controls[number]
	if c := s.calls.served[number]; c != nil {
		cancel = c.abandon()
	}
	p.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// abandon has nothing wait for the model that has made the call, and returns what
// cancels it, which is nil before it was made. The caller holds mu.
func (c *called) abandon() (cancel func()) {
	c.canceled = true
	c.wake()
	return c.cancel
}

// dropCalls forgets the calls and controls of a peer whose stream has ended, and
// returns what cancels them. The caller holds mu.
func (s *stream) dropCalls() (cancels []func()) {
	for number, c := range s.calls.served {
		delete(s.calls.served, number)
		for i := range c.unread {
			c.unread[i].lease.Release()
		}
		if cancel := c.abandon(); cancel != nil {
			cancels = append(cancels, cancel)
		}
	}
	for number, cancel := range s.calls.controls {
		delete(s.calls.controls, number)
		cancels = append(cancels, cancel)
	}
	return cancels
}
