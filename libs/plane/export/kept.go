package export

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/plane/codec"
	"github.com/nereid-serving/nereid/libs/tensor"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// maxKept bounds the bytes that a worker keeps for what one gateway runs next. Outputs
// above it go to the gateway, which bounds what it has by its own budget, so that nothing
// waits for room.
const maxKept = 1 << 30

// kept are the outputs of a response that stay here.
type kept struct {
	lease Lease
	bytes int64
	taken bool // the gateway has the response
}

// settleLook is how often a process that stops looks at what others have yet to take.
const settleLook = 10 * time.Millisecond

// Undelivered is the data of a stopping process that others have not acknowledged.
type Undelivered struct {
	Responses int   // that their processes have not acknowledged
	Bytes     int64 // of the outputs of these
	Kept      int64 // bytes of outputs that stay here for those that read them next
	// Dropped is how many responses were given up so far because the process that they
	// are for was gone or had no stream for long. It may come back and ask for them.
	Dropped uint64
}

// Waits reports whether it is worth waiting.
func (u Undelivered) Waits() bool { return u.Responses > 0 || u.Kept > 0 }

// Settle waits until others have acknowledged all responses and no outputs are kept
// here any more, or ctx is done, and returns what is left. The process serves them as
// before meanwhile, and is given no more responses.
func (e *Endpoint) Settle(ctx context.Context) Undelivered {
	tick := time.NewTicker(settleLook)
	defer tick.Stop()
	for {
		u := e.undelivered()
		if !u.Waits() {
			return u
		}
		select {
		case <-ctx.Done():
			return u
		case <-tick.C:
		}
	}
}

// undelivered is what others have not taken by now. What is for a process that has
// neither a stream nor a lease nobody will take.
func (e *Endpoint) undelivered() (u Undelivered) {
	e.mu.Lock()
	peers := slices.Collect(maps.Values(e.peers))
	e.mu.Unlock()
	for _, p := range peers {
		p.mu.Lock()
		n, bytes, streamless := p.outbox.unacknowledged(), p.outbox.held, p.served == nil
		p.mu.Unlock()
		if n > 0 && streamless && !e.alive(p.incarnation) {
			u.Dropped += uint64(n)
			continue
		}
		u.Responses, u.Bytes = u.Responses+n, u.Bytes+bytes
	}
	u.Kept = e.KeptBytes()
	u.Dropped += e.dropped.Load()
	return u
}

// alive reports whether a process holds its lease, as far as owners are known.
func (e *Endpoint) alive(incarnation uint64) bool {
	for _, owner := range e.config.Owners {
		if _, known := owner(incarnation); known {
			return true
		}
	}
	return len(e.config.Owners) == 0
}

// keep has the large outputs of a response stay here, named for those that read them
// next.
func (b *outbox) keep(r *infer.Response) {
	e := b.peer.endpoint
	if !r.Keep || b.kept.bytes+r.OutputBytes() > maxKept || !slices.ContainsFunc(r.Outputs, large) {
		return
	}
	named, lease := e.Exports.Lend(r.Outputs, e.Identity().Epoch)
	k := &kept{lease: lease}
	for i := range named {
		if named[i].Data.Place == tensor.Remote {
			k.bytes += named[i].Data.Length
			r.Outputs[i].Data.Release() // the lease has a reference of its own
		}
	}
	if b.kept.of == nil {
		b.kept.of = make(map[uint64]*kept)
	}
	b.kept.last++
	b.kept.of[b.kept.last] = k
	b.kept.bytes += k.bytes
	e.kept.Add(k.bytes)
	e.keeps.Add(1)
	r.Outputs, r.Kept = named, b.kept.last
}

func large(t infer.Tensor) bool { return t.Data.Place == tensor.Local && t.Data.Length >= inlineTensor }

// keeping is what an outbox keeps, by number.
type keeping struct {
	last  uint64
	bytes int64
	of    map[uint64]*kept
}

// took notes that the gateway has the response of a number.
func (k *keeping) took(number uint64) {
	if at := k.of[number]; at != nil {
		at.taken = true
	}
}

// release gives up what is kept by a number. One that is not known was released with
// the stream before.
func (b *outbox) release(number uint64) {
	if at := b.kept.of[number]; at != nil {
		delete(b.kept.of, number)
		b.kept.bytes -= at.bytes
		b.peer.endpoint.kept.Add(-at.bytes)
		at.lease.Release()
	}
}

// releaseUnless gives up all that the gateway has taken and does not hold.
func (b *outbox) releaseUnless(held []uint64) {
	for number, at := range b.kept.of {
		if at.taken && !slices.Contains(held, number) {
			b.release(number)
		}
	}
}

// releaseKept gives up all that is kept.
func (b *outbox) releaseKept() {
	for number := range b.kept.of {
		b.release(number)
	}
}

// hold has a response that this process has taken keep its outputs at the peer until it
// is released. It is called before anybody may release the response.
func (p *peer) hold(r *infer.Response) {
	if r.Kept == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.holds == nil {
		p.holds = make(map[uint64]bool)
	}
	number, released := r.Kept, r.OnRelease
	p.holds[number] = true
	r.OnRelease = func() {
		p.releaseKept(number)
		if released != nil {
			released()
		}
	}
}

// releaseKept tells the peer that nobody reads what it keeps by a number. Without a stream the
// next one begins with what is still held.
func (p *peer) releaseKept(number uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.holds, number)
	if p.dialed != nil {
		p.dialed.write(func(w *codec.Writer) error { return w.Release(number) })
	}
}

// tellHolds begins a stream with what is still held, where the peer has ever kept
// something: one of an older release knows no such message. The caller holds mu.
func (p *peer) tellHolds() {
	if p.holds == nil {
		return
	}
	m := &nereidv1.Holds{Kept: make([]uint64, 0, len(p.holds))}
	for number := range p.holds {
		m.Kept = append(m.Kept, number)
	}
	p.dialed.write(func(w *codec.Writer) error { return w.Message(codec.ExchangeHolds, m) })
}

// onRelease takes one message by which a gateway says what it reads no more.
func (p *peer) onRelease(s *stream, number uint64) error {
	return p.onStream(s, func() error { p.outbox.release(number); return nil })
}

// onHolds takes in what the gateway holds at the beginning of a stream.
func (p *peer) onHolds(s *stream, b codec.Body) error {
	m := new(nereidv1.Holds)
	if err := s.reader.Message(b, m); err != nil {
		return err
	}
	return p.onStream(s, func() error { p.outbox.releaseUnless(m.GetKept()); return nil })
}

var errNotKept = errs.New(errs.PeerMalformed, "the peer names memory of its own in a response that keeps none")
