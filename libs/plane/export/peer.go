package export

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/plane/codec"
	"github.com/nereid-serving/nereid/libs/tensor"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// lifetime is how long a peer without a stream is retained.
const lifetime = time.Minute

var errReplaced = errs.New(errs.PeerUnreachable, "the peer has begun another stream")

// ErrIdle ends a session in which nothing was fetched for a while.
var ErrIdle = errs.New(errs.PeerUnreachable, "nothing was fetched over the stream for a while")

// peer is another process, by its incarnation. It outlives its streams: one that the peer has opened, and one that
// this side has opened, if two workers fetch from each other. Responses go over the former.
type peer struct {
	endpoint    *Endpoint
	incarnation uint64

	alone *time.Timer // drops the peer once it has had no stream for its lifetime
	idle  *time.Timer // ends a dialed stream without fetches; nil never does

	mu      sync.Mutex
	ended   bool              // guarded by mu
	leased  bool              // otherwise the peer ends with its streams; guarded by mu
	number  uint64            // of the last served stream; guarded by mu
	served  *stream           // opened by the peer; nil while there is none; guarded by mu
	dialed  *stream           // opened by this side; nil while there is none; guarded by mu
	fetches map[uint64]*fetch // guarded by mu
	fetched uint64            // the last number of a fetch; guarded by mu
	outbox  outbox            // guarded by mu
	// released is how many responses to a request of this process have been released here, for requests whose peer
	// awaits that and has not sent the last response; guarded by mu.
	released map[infer.RequestID]uint32
	// holds are the numbers under which the peer retains outputs for this process; guarded by mu.
	holds map[uint64]bool
	// numbered is the last number of a call or control; guarded by mu.
	numbered uint64
}

func newPeer(e *Endpoint, incarnation uint64) *peer {
	p := &peer{endpoint: e, incarnation: incarnation, leased: true, fetches: make(map[uint64]*fetch)}
	p.outbox.peer = p
	p.alone = time.AfterFunc(lifetime, p.dropUnlessConnected)
	if e.config.Idle > 0 {
		p.idle = time.AfterFunc(e.config.Idle, p.closeIdle)
	}
	return p
}

// stream returns the stream for fetches; nil while there is none. The caller holds mu.
func (p *peer) stream() *stream {
	if p.served != nil {
		return p.served
	}
	return p.dialed
}

// serve makes s the stream that the peer has opened and sends what the peer has not acknowledged. It fails if a later
// stream has overtaken s.
func (p *peer) serve(s *stream, h *nereidv1.TensorHello) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.ended:
		return errStopped()
	case h.GetStream() <= p.number:
		return errReplaced
	}
	p.number = h.GetStream()
	p.detach(p.served)
	p.served = s
	s.calls.taken = h.GetTakesCalls()
	p.attached()
	p.outbox.begin(s, h.GetTaken())
	return nil
}

// dial makes s the stream that this side has opened.
func (p *peer) dial(s *stream) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return errStopped()
	}
	p.detach(p.dialed)
	p.dialed = s
	p.tellHolds()
	p.tellReleases()
	p.attached()
	if p.idle != nil {
		p.idle.Reset(p.endpoint.config.Idle)
	}
	return nil
}

// attached continues with what waited for a stream. The caller holds mu.
func (p *peer) attached() {
	p.alone.Stop()
	p.leased = true
	for _, f := range p.fetches {
		if f.on == nil {
			p.ask(f)
		}
	}
}

// run moves messages until the stream ends, and returns the cause.
func (p *peer) run(ctx context.Context, s *stream) error {
	err := s.link.Run(ctx, func(envelope mem.BufferSlice) error {
		return s.reader.Each(envelope, func(member protowire.Number, b codec.Body) error { return p.receive(s, member, b) })
	})
	p.mu.Lock()
	p.detach(s)
	s.endCalls()
	cancels := s.dropCalls()
	last, asks := !p.leased && p.stream() == nil, p.asks()
	p.mu.Unlock()
	for _, cancel := range cancels {
		cancel()
	}
	s.release()
	switch {
	case last:
		p.endpoint.drop(p)
	case asks:
		p.endpoint.config.Reach(p.incarnation)
	}
	return err
}

// detach drops a stream, unless it was dropped before. The caller holds mu.
func (p *peer) detach(s *stream) {
	switch s {
	case nil:
		return
	case p.served:
		p.served = nil
		p.outbox.detach()
	case p.dialed:
		p.dialed = nil
	default:
		return
	}
	s.link.Close(errReplaced)
	s.flow.end()
	if p.stream() == nil {
		p.alone.Reset(lifetime)
	}
	for _, f := range p.fetches {
		if f.on == s {
			f.restart()
			p.ask(f)
		}
	}
}

// setLeased sets whether the peer outlives its streams.
func (p *peer) setLeased(leased bool) {
	p.mu.Lock()
	p.leased = leased
	last := !leased && p.stream() == nil
	p.mu.Unlock()
	if last {
		p.endpoint.drop(p)
	}
}

func (p *peer) dropUnlessConnected() {
	p.mu.Lock()
	kept := p.stream() != nil || len(p.released) > 0 // with which a stream would continue
	p.mu.Unlock()
	if !kept {
		p.endpoint.drop(p)
	}
}

func (p *peer) closeIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.dialed == nil:
	case len(p.fetches) > 0 || len(p.dialed.flow.bulk) > 0:
		p.idle.Reset(p.endpoint.config.Idle)
	default:
		p.dialed.link.Close(ErrIdle)
	}
}

func (p *peer) waits() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.fetches) > 0
}

// end makes the peer accept nothing more.
func (p *peer) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
}

// undelivered returns how many responses the peer has not acknowledged.
func (p *peer) undelivered() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.outbox.unacknowledged()
}

// close releases everything for good; fetches fail with cause.
func (p *peer) close(cause error) {
	p.mu.Lock()
	p.ended = true
	for _, s := range []*stream{p.served, p.dialed} {
		if s != nil {
			s.link.Close(errStopped())
			p.detach(s)
		}
	}
	p.alone.Stop()
	if p.idle != nil {
		p.idle.Stop()
	}
	p.outbox.end()
	p.released, p.holds = nil, nil
	fetches := p.fetches
	p.fetches = nil
	p.mu.Unlock()
	for _, f := range fetches {
		f.done(tensor.Ref{}, cause)
	}
}

// respond takes ownership of a response, unless the peer has ended.
func (p *peer) respond(r *infer.Response) bool {
	if !r.Keep {
		p.share(r)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return false
	}
	p.outbox.send(r)
	return true
}

// receive handles one message of a stream.
func (p *peer) receive(s *stream, member protowire.Number, b codec.Body) error {
	switch member {
	case codec.ExchangeResponse:
		r, _, err := s.reader.Response(b)
		if err != nil {
			return err
		}
		return p.take(s, r)
	case codec.ExchangePart:
		chunk, err := s.reader.Part(b)
		if err != nil {
			return err
		}
		return p.part(s, chunk)
	case codec.ExchangeTaken:
		responses, err := s.reader.Taken(b)
		if err != nil {
			return err
		}
		return p.onStream(s, func() error { return p.outbox.acknowledged(responses) })
	case codec.ExchangeRoom:
		request, responses, err := s.reader.Room(b)
		if err != nil {
			return err
		}
		return p.onStream(s, func() error { p.outbox.room(request, responses); return nil })
	case codec.ExchangeRelease:
		kept, err := s.reader.Release(b)
		if err != nil {
			return err
		}
		return p.onRelease(s, kept)
	case codec.ExchangeHolds:
		return p.onHolds(s, b)
	case codec.ExchangeFetch:
		number, named, err := s.reader.Fetch(b)
		if err != nil {
			return err
		}
		return p.onStream(s, func() error { return p.lend(s, number, named) })
	case codec.ExchangeFetched:
		chunk, err := s.reader.Fetched(b)
		if err != nil {
			return err
		}
		n := chunk.Len()
		p.chunk(s, chunk)
		return s.intake.took(n)
	case codec.ExchangeCredit:
		credit, err := s.reader.Credit(b)
		if err != nil {
			return err
		}
		return p.onStream(s, func() error { return s.flow.credit(credit) })
	case codec.ExchangeRegion:
		m := new(nereidv1.Region)
		if err := s.reader.Message(b, m); err != nil {
			return err
		}
		return p.open(s, m)
	case codec.ExchangeOpened:
		return p.onStream(s, func() error { s.opened = true; return nil })
	}
	return p.receiveCall(s, member, b)
}

// receiveCall handles one message of a call or control.
func (p *peer) receiveCall(s *stream, member protowire.Number, b codec.Body) error {
	switch member {
	case codec.ExchangeCall:
		number, call, err := s.reader.Call(b, p.endpoint.config.Clock.Now())
		if err != nil {
			return err
		}
		return p.onCall(s, number, call)
	case codec.ExchangeCallResponse:
		number, r, err := s.reader.CallResponse(b)
		if err != nil {
			return err
		}
		return p.answered(s, number, r)
	case codec.ExchangeCallCancel:
		number, err := s.reader.CallCancel(b)
		if err == nil {
			p.onCancel(s, number)
		}
		return err
	case codec.ExchangeCallTaken:
		number, responses, err := s.reader.CallTaken(b)
		if err != nil {
			return err
		}
		return p.onStream(s, func() error { return p.onTaken(s, number, responses) })
	case codec.ExchangeControl:
		number, control, err := s.reader.Control(b)
		if err != nil {
			return err
		}
		return p.control(s, number, control)
	case codec.ExchangeControlDone:
		number, ready, failure, err := s.reader.ControlDone(b)
		if err != nil {
			return err
		}
		return p.onStream(s, func() error { return p.controlled(s, number, ready, failure) })
	}
	return errs.New(errs.PeerMalformed, "the peer sent a message that is none of an exchange")
}

// onStream calls do if s is still a stream of the peer, holding mu.
func (p *peer) onStream(s *stream, do func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s != p.served && s != p.dialed {
		return nil
	}
	return do()
}

// open maps the peer's memory, if possible. Tensors that were requested in the meantime arrive as bytes.
func (p *peer) open(s *stream, m *nereidv1.Region) error {
	if s.region != nil {
		return nil
	}
	region := open(m)
	if region == nil {
		return nil
	}
	p.mu.Lock()
	s.region = region
	p.mu.Unlock()
	return s.tellOpened()
}
