package export

import (
	"errors"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/plane/codec"
	"github.com/nereid-serving/nereid/libs/plane/link"
)

const (
	// maxCalls limits the calls and controls in flight on a stream.
	maxCalls = 4096
	// A call's window is full at windowResponses responses or windowResponseBytes bytes that its model has not taken:
	// a model that does not read blocks the one that it has called.
	windowResponses     = 32
	windowResponseBytes = 16 << 20
)

// Caller makes the calls of this process's models at gateways: those with a parent at the gateway that made the
// parent's request, others at any gateway. It is safe for concurrent use.
type Caller struct{ endpoint *Endpoint }

var (
	_ infer.Caller  = Caller{}
	_ infer.Control = Caller{}
)

// Caller returns the Caller for this process's models.
func (e *Endpoint) Caller() Caller { return Caller{e} }

// Call makes a call: see [infer.Caller]. It fails with peer_unreachable if there is no stream with the gateway, and
// when the stream ends, since a call is never repeated.
func (c Caller) Call(of *infer.Call, receive func(*infer.Response)) (cancel func()) {
	defer of.Release() // what is lent or sent has its own references
	made, err := c.endpoint.call(of, receive)
	if err != nil {
		receive(&infer.Response{Final: true, Err: err})
		return func() {}
	}
	return made.cancel
}

// calling is a call that a model of this process has made. It belongs to the stream over which it was made. The
// peer's mu guards the fields that change.
type calling struct {
	peer    *peer
	stream  *stream
	number  uint64
	model   string
	receive func(*infer.Response)

	lease    Lease             // of its inputs; ends when the gateway no longer needs them
	queued   []*infer.Response // received, and not being handed over
	handing  bool              // a goroutine hands responses over
	canceled bool
	ended    bool // its end has arrived, or is known: nothing that arrives is handed over
	over     bool // nothing more is exchanged with the gateway about the call

	came, taken uint32 // responses
	bytes       int64  // of those that have arrived and are not taken
	// acknowledged is how many taken responses the gateway knows of; unacknowledged is the bytes of the rest.
	acknowledged   uint32
	unacknowledged int64 // bytes
	holdsLent      bool  // the gateway retains something for it
}

// call makes a call.
func (e *Endpoint) call(of *infer.Call, receive func(*infer.Response)) (*calling, error) {
	if n := callText(of); n > infer.MaxDescriptorBytes {
		return nil, errs.New(errs.InvalidParameter, "a call of model '%s' has %d bytes beside its tensors, want at most %d", of.Model, n, infer.MaxDescriptorBytes).
			WithModel(of.Model)
	}
	p, err := e.gateway(of.Parent.Unit.Request.Origin, of.Model)
	if err != nil {
		return nil, err
	}
	named := *of
	c := &calling{peer: p, model: of.Model, receive: receive}
	named.Inputs, c.lease = e.Exports.Lend(of.Inputs, e.Identity().Epoch)
	p.mu.Lock()
	defer p.mu.Unlock()
	c.stream, c.number, err = p.nextCall(of.Model)
	if err == nil {
		now := e.config.Clock.Now()
		err = c.stream.link.Write(func(w *codec.Writer) error { return w.Call(c.number, &named, now) })
	}
	if err != nil {
		c.lease.Release()
		return nil, unsent(err, of.Model)
	}
	c.stream.calls.made[c.number] = c
	return c, nil
}

func callText(of *infer.Call) int64 {
	r := infer.Request{
		ID: of.ID, Inputs: of.Inputs, Outputs: of.Outputs, Parameters: of.Parameters, Sequence: of.Sequence,
		Tenant: of.Tenant, CostClass: of.CostClass, Trace: of.Trace,
	}
	return r.DescriptorBytes() + int64(len(of.Model)+len(of.Version))
}

// unsent returns the error for something that could not be sent: that the stream has ended, or what is wrong with the
// message.
func unsent(err error, model string) error {
	if errors.Is(err, link.ErrClosed) {
		return unreachable(model)
	}
	return err
}

func unreachable(model string) error {
	return errs.New(errs.PeerUnreachable, "the gateway that was to reach model '%s' has no stream with this worker, or the stream has ended: try again", model).
		WithModel(model)
}

// gateway returns the peer that accepts the calls of an incarnation's requests; any gateway for 0.
func (e *Endpoint) gateway(incarnation uint64, model string) (*peer, error) {
	if incarnation != 0 {
		if p := e.known(incarnation); p != nil {
			return p, nil
		}
		return nil, unreachable(model)
	}
	for _, p := range e.all() {
		if p.takesCalls() {
			return p, nil
		}
	}
	return nil, unreachable(model)
}

func (e *Endpoint) all() []*peer {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := make([]*peer, 0, len(e.peers))
	for _, p := range e.peers {
		list = append(list, p)
	}
	return list
}

func (p *peer) takesCalls() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.served != nil && p.served.calls.taken
}

// nextCall returns the stream for the next call or control, and its number. The caller holds mu.
func (p *peer) nextCall(model string) (*stream, uint64, error) {
	s := p.served
	switch {
	case s == nil:
		return nil, 0, unreachable(model)
	case !s.calls.taken:
		return nil, 0, errs.New(errs.Unsupported, "model '%s' cannot be reached: the gateway is of a release that takes no calls of models: upgrade it", model).
			WithModel(model)
	case len(s.calls.made)+len(s.calls.asked) >= maxCalls:
		return nil, 0, errs.New(errs.QueueFull, "model '%s' cannot be called: models have %d calls under way at the gateway", model, maxCalls).
			WithModel(model)
	}
	p.numbered++
	return s, p.numbered, nil
}

// cancel says that nobody waits for the call any more.
func (c *calling) cancel() {
	c.peer.mu.Lock()
	defer c.peer.mu.Unlock()
	c.cancelLocked()
}

func (c *calling) cancelLocked() {
	if c.canceled || c.over {
		return
	}
	c.canceled = true
	_ = c.stream.link.Write(func(w *codec.Writer) error { return w.CallCancel(c.number) }) // otherwise the stream has ended, and the call with it
}

// answered handles a response to a call.
func (p *peer) answered(s *stream, number uint64, r *infer.Response) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := s.calls.made[number]
	size := r.OutputBytes()
	switch {
	case c == nil || c.over:
		r.Release()
		return errs.New(errs.PeerMalformed, "the gateway answers call %d, which is not under way", number)
	case !r.Final && (c.came-c.taken >= windowResponses || c.bytes >= windowResponseBytes):
		r.Release()
		return errs.New(errs.PeerMalformed, "the gateway sent more responses to a call than there is room for")
	}
	c.came++
	if c.ended { // it has ended here, and the gateway was told to cancel it
		if r.Final {
			c.acknowledge(c.came)
			c.finish()
		}
		r.Release()
		return nil
	}
	c.bytes += size
	c.ended = r.Final
	c.queue(r)
	return nil
}

// queue queues a response to be handed over after those before it. The caller holds mu.
func (c *calling) queue(r *infer.Response) {
	c.queued = append(c.queued, r)
	if !c.handing {
		c.handing = true
		go c.hand()
	}
}

// hand hands over the received responses one after another while the stream continues: the model may take its time.
func (c *calling) hand() {
	for r := c.next(); r != nil; r = c.next() {
		final, size, lent := r.Final, r.OutputBytes(), holdsLent(r)
		if err := c.peer.bring(r.Outputs, c.stream.link.Done()); err != nil {
			r.Release()
			r = c.fail(errs.Wrap(errs.TransferFailed, err, "an output of model '%s' did not reach the model that has called it: %v", c.model, err).
				WithModel(c.model))
		}
		c.receive(r)
		c.took(size, lent, final)
	}
}

func (c *calling) next() *infer.Response {
	c.peer.mu.Lock()
	defer c.peer.mu.Unlock()
	if len(c.queued) == 0 {
		c.handing = false
		return nil
	}
	r := c.queued[0]
	c.queued[0] = nil
	c.queued = c.queued[1:]
	return r
}

// fail ends a call here.
func (c *calling) fail(err error) *infer.Response {
	c.peer.mu.Lock()
	defer c.peer.mu.Unlock()
	for _, r := range c.queued {
		r.Release()
	}
	final := c.ended // it has arrived
	c.queued, c.ended = nil, true
	if final {
		c.acknowledge(c.came)
		c.finish()
	} else {
		c.cancelLocked()
	}
	return &infer.Response{Final: true, Err: err}
}

// took records that the model has a response, and occasionally acknowledges that to the gateway.
func (c *calling) took(size int64, lent, final bool) {
	c.peer.mu.Lock()
	defer c.peer.mu.Unlock()
	if c.over {
		return
	}
	c.taken++
	c.bytes -= size
	c.unacknowledged += size
	c.holdsLent = c.holdsLent || lent
	if c.taken-c.acknowledged >= windowResponses/2 || c.unacknowledged >= maxUnacknowledgedBytes || final && c.holdsLent {
		c.acknowledge(c.taken)
	}
	if final {
		c.finish()
	}
}

// acknowledge tells the gateway how many responses were taken. The caller holds mu.
func (c *calling) acknowledge(taken uint32) {
	c.acknowledged, c.unacknowledged, c.holdsLent = taken, 0, false
	_ = c.stream.link.Write(func(w *codec.Writer) error { return w.CallTaken(c.number, taken) }) // as in cancelLocked
}

// finish records that the gateway has ended the call. The caller holds mu.
func (c *calling) finish() {
	c.over = true
	if c.lease.Empty() {
		delete(c.stream.calls.made, c.number)
	}
}

// inputsTaken ends the lease of a call's inputs. The caller holds mu.
func (p *peer) inputsTaken(s *stream, number uint64) error {
	c := s.calls.made[number]
	if c == nil || c.lease.Empty() {
		return errs.New(errs.PeerMalformed, "the gateway gives back the inputs of call %d, which lends none", number)
	}
	c.lease.Release()
	if c.over {
		delete(s.calls.made, number)
	}
	return nil
}

// endCalls ends the calls and controls of a stream that has ended. The caller holds mu.
func (s *stream) endCalls() {
	for number, c := range s.calls.made {
		delete(s.calls.made, number)
		c.lease.Release()
		if over := c.ended; !over {
			c.ended, c.over = true, true
			c.queue(&infer.Response{Final: true, Err: unreachable(c.model)})
		}
	}
	for number, q := range s.calls.asked {
		delete(s.calls.asked, number)
		q.end(false, unreachable(q.model))
	}
}
