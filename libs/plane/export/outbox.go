package export

import (
	"math"
	"slices"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/plane/codec"
	"github.com/nereid-serving/nereid/libs/shm"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// maxWaiting limits the bytes of responses that wait for a gateway. A response beyond the limit is replaced by an
// error without outputs: an error is small.
const maxWaiting = 1 << 30

// outbox retains the responses to a gateway until the gateway has acknowledged them. It outlives the streams; the
// peer's mu guards it.
type outbox struct {
	peer   *peer
	stream *stream // opened by the gateway; nil while there is none

	known  bool              // the gateway has said what it has received
	taken  uint64            // responses that the gateway has acknowledged
	unsure []*infer.Response // sent on the current stream, or the last: from number taken+1 on
	queued []*infer.Response // while there is no stream
	large  []*outgoing       // some of whose parts have not been sent, and what must not overtake them
	held   int64             // bytes of the outputs of all responses
	parts  uint64            // the last number of a part
	// awaited are the responses whose release is awaited, by the numbers of their requests and in order. Most
	// requests have none: see infer.Response.
	awaited map[uint64][]awaited
	kept    keeping
}

// outgoing is a response that is being sent, with its outputs as references.
type outgoing struct {
	response *infer.Response
	named    infer.Response
	size     int64 // bytes that the message carries
	parts    int   // outputs with missing parts
}

// begin continues over a stream with what the gateway has not acknowledged.
func (b *outbox) begin(s *stream, taken uint64) {
	if b.known {
		b.forget(taken)
	}
	b.known, b.taken = true, max(b.taken, taken)
	b.stream = s
	s.flow.sent = func(r *infer.Response, failed bool) {
		b.unsure = append(b.unsure, r)
		if failed { // the gateway has ended the request
			b.room(r.Work.Request.Number, math.MaxUint32)
			b.release(r.Kept)
		}
	}
	// What was sent and not acknowledged is sent again, before later responses.
	again := append(b.unsure, b.queued...)
	b.unsure, b.queued = nil, nil
	for _, r := range again { // all, even if the stream has ended: then they wait again
		b.start(r)
	}
}

// detach retains what has not been sent for the next stream.
func (b *outbox) detach() {
	for _, i := range b.stream.flow.end() {
		b.queued = append(b.queued, i.of)
	}
	for _, o := range b.large {
		b.queued = append(b.queued, o.response)
	}
	b.stream, b.large = nil, nil
}

// unacknowledged returns how many responses the gateway has not acknowledged.
func (b *outbox) unacknowledged() int {
	n := len(b.unsure) + len(b.queued) + len(b.large)
	if b.stream != nil {
		n += len(b.stream.flow.whole)
	}
	return n
}

// end gives up everything that waits. There is no stream.
func (b *outbox) end() {
	b.peer.endpoint.dropped.Add(uint64(b.unacknowledged()))
	b.forget(b.taken + uint64(len(b.unsure)))
	for _, r := range b.queued {
		r.Release()
	}
	b.queued, b.held = nil, 0
	b.releaseAwaited()
	b.releaseKept()
}

// send takes ownership of a response.
func (b *outbox) send(r *infer.Response) {
	b.keep(r)
	size := outputBytes(r)
	if b.held+size > maxWaiting {
		work := r.Work
		b.release(r.Kept)
		r.Release()
		r, size = infer.Fail(work, errs.New(errs.TransferFailed, "the gateway takes no answers: %d bytes wait for it", b.held)), 0
	}
	b.held += size
	b.await(r)
	if b.stream == nil {
		b.queued = append(b.queued, r)
		return
	}
	b.start(r)
}

// outputBytes returns the bytes of a response that are here and not retained: they are released when the gateway has
// acknowledged the response.
func outputBytes(r *infer.Response) int64 { return infer.LocalBytes(r.Outputs) }

// acknowledged releases what the gateway has acknowledged. The gateway cannot acknowledge more than was sent: it
// would lose responses that never come again.
func (b *outbox) acknowledged(taken uint64) error {
	if sent := b.taken + uint64(len(b.unsure)); taken > sent {
		return errs.New(errs.PeerMalformed, "the peer has taken %d responses, of which it got %d", taken, sent)
	}
	b.forget(taken)
	return nil
}

// forget releases the responses up to number taken.
func (b *outbox) forget(taken uint64) {
	if taken <= b.taken {
		return
	}
	n := int(min(taken-b.taken, uint64(len(b.unsure))))
	for _, r := range b.unsure[:n] {
		b.held -= outputBytes(r)
		b.kept.took(r.Kept)
		r.Release()
	}
	clear(b.unsure[:n])
	b.unsure = b.unsure[n:]
	b.taken = taken
}

// start sends a response as far as credit allows, after the parts of its large outputs. It overtakes responses of
// other requests whose parts are still being sent. A stream that cannot send ends.
func (b *outbox) start(r *infer.Response) {
	o := &outgoing{response: r, named: *r}
	o.named.Outputs = append([]infer.Tensor(nil), r.Outputs...)
	for i := range o.named.Outputs {
		o.named.Outputs[i].Data = b.name(o, o.named.Outputs[i].Data)
	}
	if o.parts > 0 || slices.ContainsFunc(b.large, o.follows) {
		b.large = append(b.large, o)
	} else {
		b.stream.flow.whole = append(b.stream.flow.whole, o.item())
	}
	if err := b.stream.flow.pump(); err != nil {
		b.stream.link.Close(err)
	}
}

// follows reports whether an earlier response is to the same request.
func (o *outgoing) follows(earlier *outgoing) bool {
	return earlier.response.Work.Request == o.response.Work.Request
}

func (o *outgoing) item() item {
	return item{named: &o.named, size: o.size, of: o.response}
}

// name returns how a response names an output: as it is kept, the bytes themselves, a slot
// that the gateway reads, a place in its own memory, or parts, which are sent
// first.
func (b *outbox) name(o *outgoing, local tensor.Ref) tensor.Ref {
	if local.Place == tensor.Remote { // it is kept
		return local
	}
	if arena := b.peer.endpoint.config.Arena; arena != nil && b.stream.opened {
		if named, ok := arena.Name(local); ok {
			return named
		}
	}
	if region := b.stream.region; region != nil {
		// An input that the model passes on, which the gateway keeps until the
		// request has its final response.
		if at, ok := region.Find(local); ok {
			return tensor.Ref{Place: tensor.Remote, Holder: b.peer.incarnation, Region: shm.Number, Slot: uint64(at), Length: local.Length}
		}
	}
	if local.Length <= partBytes {
		o.size += local.Length
		return local
	}
	b.parts++
	number, size := b.parts, uint64(local.Length)
	o.parts++
	b.stream.flow.bulk = append(b.stream.flow.bulk, &transfer{
		data: local.Retain(),
		part: func(w *codec.Writer, data tensor.Ref) error { return w.Part(number, size, data) },
		done: func() {
			o.parts--
			b.ripen()
		},
	})
	return tensor.Ref{Place: tensor.Remote, Generation: number, Length: local.Length}
}

// ripen lets those responses go whose parts have gone, and that are behind none
// of their request.
func (b *outbox) ripen() {
	var left []*outgoing
	for _, o := range b.large {
		if o.parts > 0 || slices.ContainsFunc(left, o.follows) {
			left = append(left, o)
			continue
		}
		b.stream.flow.whole = append(b.stream.flow.whole, o.item())
	}
	b.large = left
}

// share moves large outputs into memory that the gateway reads, where they are
// not there already and are no inputs in the gateway's own: memory of a backend,
// say. A copy costs a tenth of what bytes over the stream do.
func (p *peer) share(r *infer.Response) {
	arena, region := p.endpoint.config.Arena, p.reads()
	if arena == nil || region == nil {
		return
	}
	for i := range r.Outputs {
		data := &r.Outputs[i].Data
		if data.Length < tensor.MappedThreshold {
			continue
		}
		if _, shared := arena.Name(*data); shared {
			continue
		}
		if _, theirs := region.Find(*data); theirs {
			continue
		}
		bytes, err := data.Bytes()
		if err != nil {
			continue // sending it will fail, and say so
		}
		b, err := p.endpoint.config.Pool.Get(len(bytes))
		if err != nil {
			continue // there is another way
		}
		copy(b.Bytes(), bytes)
		data.Release()
		*data = tensor.InBuffer(b, 0, int64(len(bytes)))
	}
}

// reads returns the gateway's region if each reads the other's; else nil.
func (p *peer) reads() *shm.Region {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.served == nil || !p.served.opened {
		return nil
	}
	return p.served.region
}
