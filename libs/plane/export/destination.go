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
	"github.com/nereid-serving/nereid/libs/plane/link"
	"github.com/nereid-serving/nereid/libs/shm"
	"github.com/nereid-serving/nereid/libs/tensor"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// maxWaiting bounds the bytes of responses that wait for a gateway. What comes
// above it is answered with an error in place of its outputs: an error is
// small.
const maxWaiting = 1 << 30

// lifetime is how long what waits for a gateway is kept without a stream.
const lifetime = time.Minute

var errReplaced = errs.New(errs.PeerUnreachable, "the gateway has begun another stream")

func errStopped() error {
	return errs.New(errs.Draining, "the worker does not exchange tensors: it starts or stops")
}

// destination is a gateway as a worker sees it. It outlives the streams.
type destination struct {
	worker  *Worker
	gateway uint64

	alone *time.Timer // drops the destination when it has had no stream for its lifetime

	mu      sync.Mutex
	ended   bool              // guarded by mu
	leased  bool              // else the end of the stream is the end; guarded by mu
	known   bool              // the gateway has said what it has taken; guarded by mu
	stream  uint64            // the number of the last stream; guarded by mu
	link    *link.Link        // nil while there is no stream; guarded by mu
	opened  bool              // the gateway reads the worker's arena; guarded by mu
	region  *shm.Region       // the gateway's, nil if it cannot be mapped; guarded by mu
	flow    flow              // of the present stream; guarded by mu
	taken   uint64            // responses that the gateway has taken; guarded by mu
	unsure  []*infer.Response // sent on the present stream, or the last: from number taken+1 on; guarded by mu
	queued  []*infer.Response // while there is no stream; guarded by mu
	large   []*outgoing       // not all of whose parts have gone, and what must not overtake them; guarded by mu
	held    int64             // bytes of the outputs of all responses; guarded by mu
	parts   uint64            // the last number of a part; guarded by mu
	fetches map[uint64]*fetch // guarded by mu
	fetched uint64            // the last number of a fetch; guarded by mu
}

func newDestination(w *Worker, gateway uint64) *destination {
	d := &destination{worker: w, gateway: gateway, leased: true, fetches: make(map[uint64]*fetch)}
	d.alone = time.AfterFunc(lifetime, d.left)
	return d
}

// run serves a stream of the gateway until it ends.
func (d *destination) run(ctx context.Context, link *link.Link, h *nereidv1.TensorHello) error {
	in := &intake{link: link}
	if err := in.begin(); err != nil {
		return err
	}
	if err := d.begin(link, h); err != nil {
		return err
	}
	reader := codec.NewReader(d.worker.config.Pool)
	err := link.Run(ctx, func(envelope mem.BufferSlice) error {
		return reader.Each(envelope, func(member protowire.Number, b codec.Body) error { return d.receive(in, reader, member, b) })
	})
	d.mu.Lock()
	last := d.link == link && !d.leased
	if d.link == link {
		d.detach()
	}
	d.mu.Unlock()
	if last {
		d.worker.drop(d)
	}
	return err
}

// gone ends the destination, or lets its stream be the last.
func (d *destination) gone() {
	d.mu.Lock()
	d.leased = false
	last := d.link == nil
	d.mu.Unlock()
	if last {
		d.worker.drop(d)
	}
}

// back has the destination outlive its stream again.
func (d *destination) back() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.leased = true
}

// left ends the destination if it still has no stream.
func (d *destination) left() {
	d.mu.Lock()
	alone := d.link == nil
	d.mu.Unlock()
	if alone {
		d.worker.drop(d)
	}
}

// begin makes link the stream of the gateway and sends what it has not taken.
func (d *destination) begin(link *link.Link, h *nereidv1.TensorHello) error {
	taken := h.GetTaken()
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.ended:
		return errStopped()
	case h.GetStream() <= d.stream:
		return errReplaced
	}
	d.stream = h.GetStream()
	if d.link != nil {
		d.link.Close(errReplaced)
		d.detach()
	}
	d.alone.Stop()
	if d.known {
		d.forget(taken)
	}
	d.known, d.taken = true, max(d.taken, taken)
	d.link, d.leased = link, true
	d.flow = flow{link: link, sent: func(r *infer.Response) { d.unsure = append(d.unsure, r) }}
	for _, f := range d.fetches {
		d.ask(f)
	}
	// What was sent and not taken goes again, before what came after it.
	again := append(d.unsure, d.queued...)
	d.unsure, d.queued = nil, nil
	for _, r := range again { // all, also where the stream has ended: then they wait again
		if err := d.start(r); err != nil {
			link.Close(err)
		}
	}
	return nil
}

// detach forgets the stream and what came with it. The caller holds mu.
func (d *destination) detach() {
	d.link, d.opened = nil, false
	d.alone.Reset(lifetime)
	for _, i := range d.flow.end() {
		d.queued = append(d.queued, i.of)
	}
	for _, o := range d.large {
		d.queued = append(d.queued, o.response)
	}
	d.large = nil
	for _, f := range d.fetches {
		f.restart()
	}
	if d.region != nil {
		d.region.Release()
		d.region = nil
	}
}

// end releases everything, for good.
func (d *destination) end() {
	d.mu.Lock()
	d.ended = true
	if d.link != nil {
		d.link.Close(errStopped())
		d.detach()
	}
	d.alone.Stop()
	d.forget(d.taken + uint64(len(d.unsure)))
	for _, r := range d.queued {
		r.Release()
	}
	d.queued, d.held = nil, 0
	fetches := d.fetches
	d.fetches = nil
	d.mu.Unlock()
	for _, f := range fetches {
		f.finish(tensor.Ref{}, errs.New(errs.TransferFailed, "the gateway that has the input is gone"))
	}
}

// respond takes a response over.
func (d *destination) respond(r *infer.Response) {
	d.share(r)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		r.Release()
		return
	}
	size := outputBytes(r)
	if d.held+size > maxWaiting {
		work := r.Work
		r.Release()
		r, size = infer.Fail(work, errs.New(errs.TransferFailed, "the gateway takes no answers: %d bytes wait for it", d.held)), 0
	}
	d.held += size
	if d.link == nil {
		d.queued = append(d.queued, r)
		return
	}
	if err := d.start(r); err != nil {
		d.link.Close(err)
	}
}

func outputBytes(r *infer.Response) int64 {
	n := int64(0)
	for i := range r.Outputs {
		n += r.Outputs[i].Data.Length
	}
	return n
}

// forget releases the responses up to number taken. The caller holds mu.
func (d *destination) forget(taken uint64) {
	if taken <= d.taken {
		return
	}
	n := int(min(taken-d.taken, uint64(len(d.unsure))))
	for _, r := range d.unsure[:n] {
		d.held -= outputBytes(r)
		r.Release()
	}
	clear(d.unsure[:n])
	d.unsure = d.unsure[n:]
	d.taken = taken
}

// receive takes one message of a stream.
func (d *destination) receive(in *intake, r *codec.Reader, member protowire.Number, b codec.Body) error {
	switch member {
	case codec.ExchangeTaken:
		responses, err := r.Taken(b)
		if err != nil {
			return err
		}
		return d.onStream(in.link, func() error { d.forget(responses); return nil })
	case codec.ExchangeCredit:
		credit, err := r.Credit(b)
		if err != nil {
			return err
		}
		return d.onStream(in.link, func() error { return d.flow.credit(credit) })
	case codec.ExchangeFetched:
		chunk, err := r.Fetched(b)
		if err != nil {
			return err
		}
		n := chunk.Len()
		d.chunk(in.link, chunk)
		return in.took(n)
	case codec.ExchangeRegion:
		m := new(nereidv1.Region)
		if err := r.Message(b, m); err != nil {
			return err
		}
		return d.open(in.link, m)
	case codec.ExchangeOpened:
		return d.onStream(in.link, func() error { d.opened = true; return nil })
	}
	return errs.New(errs.PeerMalformed, "a gateway sent a message that a worker does not take")
}

// onStream does something while link is the stream of the gateway, and nothing
// if it is not.
func (d *destination) onStream(link *link.Link, do func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.link != link {
		return nil
	}
	return do()
}
